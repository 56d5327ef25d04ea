"""Opening a log after any end: a clean close, a killed process, a power cut, a flipped bit.

Below the recovery point everything is known to be on disk and is trusted. Behind it every batch
is read again, header chain and CRC, and index, producers and epochs are rebuilt on the way. What
does not check out is one of three things:

* the file ends inside a batch, or in bytes that are no batch with nothing intact behind them:
  a torn tail, never acknowledged as durable, cut off;
* there are intact batches behind it: corruption in the middle. Nothing is deleted; the range is
  remembered, never served, and an operator is told;
* batches are missing below the recovery point: the disk has lost what it promised to keep. The
  log opens with what is left and says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.config import INT32_MAX, INT64_MAX
from ottla.errors import ApiError
from ottla.model import LeaderEpoch, Offset, Position, TimestampMs
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    read_header,
    read_marker,
)
from ottla.storage.epochs import Epochs, EpochsDamaged
from ottla.storage.files import Entry, File, Files
from ottla.storage.index import IndexDamaged
from ottla.storage.producers import Producers, SnapshotDamaged, snapshots_newest_first
from ottla.storage.segment import (
    LOG,
    SNAPSHOT,
    ActiveSegment,
    Indexes,
    SealedSegment,
    file_name,
    load_indexes,
    write_indexes,
)

EVERYTHING: Final = Offset(INT64_MAX)  # the recovery point of a log that was closed cleanly
EPOCHS_FILE: Final = "leader-epoch-checkpoint"
STRAY: Final = ".stray"  # a segment that nothing connects with the log before it

_SCAN_BYTES: Final = 4 << 20
_MAGIC_AT: Final = 16


class CorruptRange(NamedTuple):
    """Offsets that are on disk but cannot be trusted, and where in which segment they begin."""

    start_offset: Offset
    end_offset: Offset
    segment_base: Offset
    position: Position


@dataclass(slots=True, kw_only=True)
class Recovered:
    """What opening a log found. Taken over, with everything in it, by the log."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    epochs: Epochs
    producers: Producers
    snapshots: list[Offset]
    corrupt: list[CorruptRange] = field(default_factory=list)
    cut_bytes: int = 0
    lost_below: Offset | None = None  # what was durable once is gone from here on


def recover(
    files: Files,
    directory: Path,
    *,
    start_offset: Offset,
    recovery_point: Offset,
    interval_bytes: int,
    now_ms: TimestampMs,
) -> Recovered:
    """Open the log in `directory`, which is trusted below `recovery_point`."""
    found = files.list(directory)
    sizes = {_offset_of(entry): entry.size_bytes for entry in found if _is_a(entry, LOG)}
    if not sizes:
        files.create(directory / file_name(start_offset, LOG))
        sizes = {start_offset: 0}
    bases = sorted(sizes)
    snapshots = [_offset_of(entry) for entry in found if _is_a(entry, SNAPSHOT)]
    producers, producers_from = _load_producers(files, directory, snapshots, recovery_point)
    epochs = _load_epochs(files, directory)
    scan_from = min(recovery_point, max(producers_from, bases[0]))
    if epochs is None:
        epochs, scan_from = Epochs(), bases[0]
    scan = _Scan(
        files=files,
        directory=directory,
        interval_bytes=interval_bytes,
        now_ms=now_ms,
        recovery_point=recovery_point,
        producers=producers,
        producers_from=producers_from,
        epochs=epochs,
    )
    return scan.run(sizes, scan_from, snapshots)


@dataclass(slots=True, kw_only=True)
class _Scan:
    """One reading of a log's end; its fields fill as it goes."""

    files: Files
    directory: Path
    interval_bytes: int
    now_ms: TimestampMs
    recovery_point: Offset
    producers: Producers
    producers_from: Offset
    epochs: Epochs
    sealed: list[SealedSegment] = field(default_factory=list)
    corrupt: list[CorruptRange] = field(default_factory=list)
    cut_bytes: int = 0
    lost_below: Offset | None = None

    def run(
        self, sizes: dict[Offset, int], scan_from: Offset, snapshots: list[Offset]
    ) -> Recovered:
        bases = sorted(sizes)
        active: ActiveSegment | None = None
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            if following is not None and following <= scan_from:
                sealed = SealedSegment(self.directory, base, following, sizes[base])
                self.sealed.append(sealed)
                continue
            if active is not None:
                self._seal(active, base)
            active = self._scan_segment(base, sizes[base], scan_from, following)
            if following is not None and not self._continues(active, following):
                self._set_aside(bases[number + 1 :])
                break
        assert active is not None, "the last segment is always scanned"
        self.epochs.truncate_end(active.end_offset)
        self._note_loss(active)
        return Recovered(
            sealed=self.sealed,
            active=active,
            epochs=self.epochs,
            producers=self.producers,
            snapshots=[offset for offset in snapshots if offset <= active.end_offset],
            corrupt=self.corrupt,
            cut_bytes=self.cut_bytes,
            lost_below=self.lost_below,
        )

    def _seal(self, segment: ActiveSegment, end_offset: Offset) -> None:
        segment.indexes.finish()
        write_indexes(self.files, self.directory, segment.base_offset, segment.indexes)
        self.sealed.append(
            SealedSegment(self.directory, segment.base_offset, end_offset, segment.size_bytes)
        )

    def _continues(self, segment: ActiveSegment, following: Offset) -> bool:
        """Whether the next segment belongs to this log, though this one may be damaged.

        Segments touch. One that ends early has lost bytes that were not yet synced, and then
        nothing behind it was acknowledged either, unless the recovery point says otherwise.
        """
        if segment.end_offset == following:
            return True
        if self.corrupt and self.corrupt[-1].end_offset == following:
            return True
        if self.recovery_point < following:
            return False
        self.corrupt.append(
            CorruptRange(
                segment.end_offset, following, segment.base_offset, Position(segment.size_bytes)
            )
        )
        return True

    def _set_aside(self, bases: list[Offset]) -> None:
        for base in bases:
            path = self.directory / file_name(base, LOG)
            self.files.rename(path, path.with_name(path.name + STRAY))
        self.files.sync_dir(self.directory)

    def _note_loss(self, active: ActiveSegment) -> None:
        if self.recovery_point != EVERYTHING and active.end_offset < self.recovery_point:
            self.lost_below = active.end_offset

    def _scan_segment(
        self, base: Offset, size_bytes: int, scan_from: Offset, following: Offset | None
    ) -> ActiveSegment:
        file = self.files.open(self.directory / file_name(base, LOG))
        segment = ActiveSegment(self.directory, base, file, self.now_ms)
        position = self._load_known_part(segment, size_bytes, scan_from)
        while True:
            position = self._scan_intact(segment, position, size_bytes)
            if position == size_bytes:
                break
            resumed = _find_intact(file, position + 1, size_bytes, segment.end_offset)
            if resumed is None:
                self._cut(segment, position, size_bytes, following)
                break
            self._note_corrupt(segment, position, resumed)
            position = resumed
        if segment.size_bytes:
            segment.opened_ms = _first_timestamp(file, self.now_ms)
        return segment

    def _load_known_part(
        self, segment: ActiveSegment, size_bytes: int, scan_from: Offset
    ) -> Position:
        """Take from the stored indexes what lies before `scan_from`; return where to read on."""
        self.epochs.truncate_end(max(segment.base_offset, Offset(0)))
        if scan_from <= segment.base_offset:
            return Position(0)
        end_offset = Offset(segment.base_offset + INT32_MAX)
        try:
            indexes = load_indexes(
                self.files, self.directory, segment.base_offset, end_offset, size_bytes
            )
        except IndexDamaged:
            return Position(0)
        entry = indexes.by_offset.at_or_below(scan_from - segment.base_offset)
        if entry is None or not _is_intact(segment.file, entry[1], size_bytes):
            return Position(0)
        header = read_header(segment.file.read(entry[1], HEADER_BYTES))
        if header.last_offset != segment.base_offset + entry[0]:
            return Position(0)
        indexes.by_offset.truncate(entry[1] + 1)
        indexes.by_time.truncate(entry[0] + 1)
        indexes.max_timestamp_ms, indexes.max_timestamp_at = indexes.by_time.last()
        indexes.aborted = [
            item for item in indexes.aborted if item.last_offset < self.producers_from
        ]
        segment.indexes = indexes
        segment.size_bytes = entry[1]
        segment.end_offset = Offset(header.base_offset)
        return entry[1]

    def _scan_intact(self, segment: ActiveSegment, position: Position, size_bytes: int) -> Position:
        """Note every batch from `position` to the first that is not intact, and return where."""
        base = segment.base_offset
        note = segment.indexes.note
        interval_bytes = self.interval_bytes
        epochs = self.epochs
        at = int(position)
        end_offset = int(segment.end_offset)
        for at, fields in _intact_batches(segment.file, position, size_bytes, end_offset):
            offset, length, epoch, _, _, attributes, delta, _, timestamp_ms, producer, *_ = fields
            end_offset = offset + delta + 1
            note(at, length + LENGTH_END, end_offset - 1 - base, timestamp_ms, interval_bytes)
            if epoch != epochs.latest:
                epochs.note(LeaderEpoch(epoch), Offset(offset))
            if producer >= 0 and offset >= self.producers_from:
                self._note_producer(segment, at, tuple.__new__(BatchHeader, fields))
            segment.size_bytes = at + length + LENGTH_END
        segment.end_offset = Offset(end_offset)
        return Position(segment.size_bytes)

    def _note_producer(self, segment: ActiveSegment, position: int, header: BatchHeader) -> None:
        offset = Offset(header.base_offset)
        if not header.attributes & CONTROL:
            self.producers.note(header, offset, self.now_ms)
            return
        try:
            marker = read_marker(segment.file.read(position, header.size_bytes))
        except ApiError:
            return  # its CRC is right: whatever wrote it, it is no marker that we know
        if marker is not None:
            aborted = self.producers.note_marker(header, offset, marker, self.now_ms)
            if aborted is not None:
                segment.indexes.aborted.append(aborted)

    def _note_corrupt(self, segment: ActiveSegment, position: Position, resumed: Position) -> None:
        header = read_header(segment.file.read(resumed, HEADER_BYTES))
        offset = Offset(header.base_offset)
        self.corrupt.append(CorruptRange(segment.end_offset, offset, segment.base_offset, position))
        # Nobody can walk over what is corrupt: an entry for the last offset before the batch
        # makes every search for what lies behind begin there.
        segment.indexes.by_offset.append(offset - 1 - segment.base_offset, resumed)
        segment.size_bytes = resumed
        segment.end_offset = offset

    def _cut(
        self,
        segment: ActiveSegment,
        position: Position,
        size_bytes: int,
        following: Offset | None,
    ) -> None:
        is_whole = following is None or not _could_be_batch(segment.file, position, size_bytes)
        if is_whole or self.recovery_point < segment.end_offset:
            segment.file.truncate(position)
            segment.file.sync()
            self.cut_bytes += size_bytes - position
            return
        assert following is not None
        self.corrupt.append(
            CorruptRange(segment.end_offset, following, segment.base_offset, position)
        )
        segment.size_bytes = size_bytes


def _intact_batches(
    file: File, position: Position, size_bytes: int, next_offset: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and header fields of every batch up to the first that is not intact.

    This loop decides how long an unclean start takes, so it does nothing that can wait.
    """
    unpack = HEADER.unpack_from
    start = int(position)
    chunk_bytes = _SCAN_BYTES
    while size_bytes - start >= HEADER_BYTES:
        chunk = file.read(start, min(chunk_bytes, size_bytes - start))
        view = memoryview(chunk)
        at, end = 0, len(chunk)
        while end - at >= HEADER_BYTES:
            fields = unpack(chunk, at)
            length = fields[1]
            behind = at + length + LENGTH_END
            if (
                fields[3] != MAGIC
                or length < HEADER_BYTES - LENGTH_END
                or fields[0] < next_offset
                or fields[6] < 0
            ):
                return
            if behind > end:
                break
            if crc32c(view[at + ATTRIBUTES_AT : behind]) != fields[4]:
                return
            next_offset = fields[0] + fields[6] + 1
            yield start + at, fields
            at = behind
        else:
            behind = at + HEADER_BYTES
        if start + behind > size_bytes:
            return
        chunk_bytes = max(_SCAN_BYTES, behind - at)
        start += at


def _is_intact(file: File, position: Position, size_bytes: int) -> bool:
    return any(True for _ in _intact_batches(file, position, size_bytes, 0))


def _could_be_batch(file: File, position: Position, size_bytes: int) -> bool:
    """Whether all the bytes of a batch are there, though they are not intact."""
    head = file.read(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return False
    header = read_header(head)
    return HEADER_BYTES <= header.size_bytes <= size_bytes - position


def _find_intact(
    file: File, position: int, size_bytes: int, next_offset: Offset
) -> Position | None:
    """Where behind `position` the next intact batch begins that could belong to this log."""
    overlap = HEADER_BYTES - 1
    start = position
    while size_bytes - start >= HEADER_BYTES:
        chunk = file.read(start, min(_SCAN_BYTES, size_bytes - start))
        at = chunk.find(MAGIC, _MAGIC_AT)
        while 0 <= at <= len(chunk) - (HEADER_BYTES - _MAGIC_AT):
            candidate = at - _MAGIC_AT
            header = read_header(chunk, candidate)
            if _is_plausible(header, size_bytes - start - candidate, next_offset) and _is_intact(
                file, Position(start + candidate), start + candidate + header.size_bytes
            ):
                return Position(start + candidate)
            at = chunk.find(MAGIC, at + 1)
        if start + len(chunk) >= size_bytes:
            return None
        start += len(chunk) - overlap
    return None


def _is_plausible(header: BatchHeader, room_bytes: int, next_offset: Offset) -> bool:
    return (
        HEADER_BYTES <= header.size_bytes <= room_bytes
        and header.last_offset_delta >= 0
        and next_offset <= header.base_offset <= next_offset + INT32_MAX
    )


def _first_timestamp(file: File, now_ms: TimestampMs) -> TimestampMs:
    header = read_header(file.read(0, HEADER_BYTES))
    return TimestampMs(min(header.max_timestamp_ms, now_ms)) if header.magic == MAGIC else now_ms


def _load_producers(
    files: Files, directory: Path, snapshots: list[Offset], recovery_point: Offset
) -> tuple[Producers, Offset]:
    """The newest usable snapshot and its offset; nothing and 0 when there is none."""
    for offset in snapshots_newest_first(snapshots, recovery_point):
        try:
            data = files.read_whole(directory / file_name(offset, SNAPSHOT))
            return Producers.decode(data), offset
        except SnapshotDamaged:
            continue
    return Producers(), Offset(0)


def _load_epochs(files: Files, directory: Path) -> Epochs | None:
    try:
        return Epochs.decode(files.read_whole(directory / EPOCHS_FILE))
    except (EpochsDamaged, FileNotFoundError):
        return None


def _is_a(entry: Entry, suffix: str) -> bool:
    return entry.name.endswith(suffix) and entry.name[: -len(suffix)].isdigit()


def _offset_of(entry: Entry) -> Offset:
    return Offset(int(entry.name.partition(".")[0]))
