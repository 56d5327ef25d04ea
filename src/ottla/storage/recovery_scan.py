"""Reading the end of a log again: what is intact, and what indexes, producers and epochs follow."""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ottla.config import INT32_MAX, INT64_MAX
from ottla.errors import ApiError
from ottla.model import NO_TIMESTAMP, LeaderEpoch, Offset, Position, TimestampMs
from ottla.records.batch import (
    ATTRIBUTES_FIELD,
    BASE_OFFSET_FIELD,
    CONTROL,
    FIRST_OFFSET,
    HEADER_BYTES,
    LEADER_EPOCH_FIELD,
    MAGIC,
    MAX_TIMESTAMP_FIELD,
    PRODUCER_ID_FIELD,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    read_marker,
)
from ottla.storage.batch_scan import Placement, fills, find_intact, intact_batches, misplaced_end
from ottla.storage.damages import CorruptRange
from ottla.storage.epochs import Epochs
from ottla.storage.files import File, Files
from ottla.storage.index import (
    AbortedDamaged,
    AbortedTransaction,
    IndexDamaged,
    check_aborted,
    encode_aborted,
)
from ottla.storage.log_files import STRAY, snapshot_offsets
from ottla.storage.log_states import LogState
from ottla.storage.producers import (
    BATCHES_KEPT,
    Producers,
    Snapshot,
    SnapshotDamaged,
    snapshots_newest_first,
)
from ottla.storage.seals import Seal, read_seal, write_seal
from ottla.storage.segment import (
    ABORTED_INDEX,
    LOG,
    SEAL,
    SNAPSHOT,
    ActiveSegment,
    Indexes,
    SealedSegment,
    Unchecked,
    file_name,
    file_path,
    load_aborted,
    load_indexes,
    write_indexes,
)

EVERYTHING: Final = Offset(INT64_MAX)  # the recovery point of a log that was closed cleanly

_log = logging.getLogger("ottla.storage")


class Evidence(NamedTuple):
    """The facts that distinguish a loss from an interrupted write."""

    known_end: Offset = FIRST_OFFSET  # everything below was on disk
    closed_at: Offset | None = None
    seals: Sequence[Offset] = ()
    lost: Sequence[Offset] = ()
    skips: frozenset[int] = frozenset()
    is_dense: bool = False

    def placement(self, following: Offset | None) -> Placement:
        """The bounds of a segment's batches; `following` is the base of the next one."""
        if following is not None:
            return Placement(following, self.skips)
        return Placement(self.closed_at or INT64_MAX, self.skips, self.is_dense)


class AbortedUnknown(Exception):
    """A segment has lost its aborted transactions: replay its producers from its start."""

    def __init__(self, segment_base: Offset) -> None:
        super().__init__(segment_base)
        self.segment_base = segment_base


@dataclass(slots=True, kw_only=True)
class RecoveryScan:
    """A reading of a log's end; its fields fill as it goes."""

    files: Files
    directory: Path
    interval_bytes: int
    now_ms: TimestampMs
    recovery_point: Offset
    producers: Producers
    producers_from: Offset
    epochs: Epochs
    evidence: Evidence
    names: set[str]  # in the directory
    state: LogState | None = None  # of the last segment
    is_synced: bool = True
    snapshot_crc: int | None = None  # of what the segment with `producers_from` had aborted by then
    sealed: list[SealedSegment] = field(default_factory=list)
    corrupt: list[CorruptRange] = field(default_factory=list)
    cut_bytes: int = 0
    read_bytes: int = 0  # intact, of batches that were read
    read_offsets: int = 0
    has_loaded_indexes: bool = False  # of the segment that was scanned last
    has_lost_end: bool = False  # the last segment, of what was known to be on disk

    def run(self, sizes: dict[Offset, int], scan_from: Offset) -> ActiveSegment:
        """Read what has to be read; the last segment, which is to be written on."""
        if not self.is_synced:
            self.files.sync_dir(self.directory)  # names may be in memory only, and seals are not
        bases = sorted(sizes)
        trusted = max(0, bisect_right(bases, scan_from) - 1)
        for base, following in pairwise(bases[: trusted + 1]):
            self._trust(base, following, sizes[base])
        active = self._scan_segment(bases[trusted], sizes, scan_from)
        for base in bases[trusted + 1 :]:
            if active.end_offset < base:
                self._set_aside(base)
                continue
            self._seal(active)
            active = self._scan_segment(base, sizes, scan_from)
        if self.has_lost_end:
            active = self._begin_anew(active)
        self.epochs.truncate_end(active.end_offset)
        return active

    def _begin_anew(self, active: ActiveSegment) -> ActiveSegment:
        """Go on in a new segment: what is left of a batch would run into the next one."""
        self._seal(active)
        base = active.end_offset
        file = self.files.create(self.directory / file_name(base, LOG))
        self.files.sync_dir(self.directory)
        return ActiveSegment(self.directory, base, file, self.now_ms)

    def _trust(self, base: Offset, following: Offset, size_bytes: int) -> None:
        """Take a sealed segment as it is: it is checked when it is first read."""
        segment = SealedSegment(self.directory, base, following, size_bytes)
        segment.unchecked = Unchecked(max(size_bytes, 1))  # an empty one has lost everything
        self.sealed.append(segment)
        missing = min((one for one in self.evidence.lost if base < one < following), default=None)
        if missing is not None:
            self.corrupt.append(CorruptRange(missing, following, base, Position(size_bytes)))

    def _seal(self, segment: ActiveSegment) -> None:
        segment.indexes.finish()
        base, end_offset, size_bytes = segment.base_offset, segment.end_offset, segment.size_bytes
        write_indexes(self.files, self.directory, base, segment.indexes)
        seal = Seal.of(end_offset, size_bytes, segment.indexes)
        write_seal(self.files, self.directory, base, seal)
        sealed = SealedSegment(self.directory, base, end_offset, size_bytes)
        sealed.unchecked = segment.unchecked
        self.sealed.append(sealed)

    def _set_aside(self, base: Offset) -> None:
        """Segments touch. Before this one, bytes are missing that had not been synced; then nothing
        behind them had been acknowledged as durable either."""
        path = self.directory / file_name(base, LOG)
        self.files.rename(path, path.with_name(path.name + STRAY))
        self.files.sync_dir(self.directory)

    def _scan_segment(
        self, base: Offset, sizes: dict[Offset, int], scan_from: Offset
    ) -> ActiveSegment:
        size_bytes = sizes[base]
        following = min((other for other in sizes if other > base), default=None)
        is_known = self.state is not None and self.state.segment_base == base
        is_whole = self.state is not None and self.state.size_bytes == size_bytes
        file = None
        if not (is_known and is_whole and self.is_synced):
            file = self.files.open(file_path(self.directory, base, LOG))
        segment = ActiveSegment(self.directory, base, file, self.now_ms)
        if is_known:
            self._resume(segment)
        else:
            self._load_known_part(segment, size_bytes, scan_from, following)
        segment.unchecked = Unchecked(segment.size_bytes)
        self.scan_whole(segment, size_bytes, self.evidence.placement(following))
        if segment.size_bytes < size_bytes or segment.end_offset != following:
            self._settle_end(segment, size_bytes, following)
        if segment.size_bytes and not is_known:
            segment.opened_ms = _first_timestamp(segment.file, self.now_ms)
        if file is not None and not self.is_synced:
            file.sync()
        return segment

    def _resume(self, segment: ActiveSegment) -> None:
        """Go on where the noted state ends: nothing before that is read."""
        state = self.state
        assert state is not None, "asked for only where there is one"
        segment.indexes = state.indexes
        segment.size_bytes = state.size_bytes
        segment.end_offset = state.end_offset
        if state.size_bytes:
            segment.opened_ms = min(state.opened_ms, self.now_ms)
        self.epochs.truncate_end(segment.end_offset)

    def scan_whole(self, segment: ActiveSegment, size_bytes: int, placement: Placement) -> None:
        """Read to the last intact batch, noting what is corrupt on the way."""
        if segment.size_bytes == size_bytes:
            return
        self._scan_intact(segment, size_bytes, placement)
        while segment.size_bytes < size_bytes:
            resumed = find_intact(
                segment.file,
                segment.size_bytes + 1,
                size_bytes,
                segment.end_offset,
                placement.end_max,
            )
            if resumed is None:
                return
            header = read_header(segment.file.read(resumed, HEADER_BYTES))
            self._note_corrupt(segment, resumed, Offset(header.base_offset))
            self._scan_intact(segment, size_bytes, placement)

    def _settle_end(
        self, segment: ActiveSegment, size_bytes: int, following: Offset | None
    ) -> None:
        """Decide about what is behind the last intact batch: a torn tail, or a loss."""
        lost_until = self._lost_until(segment, size_bytes, following)
        if lost_until is not None:
            position = Position(segment.size_bytes)
            self.corrupt.append(
                CorruptRange(segment.end_offset, lost_until, segment.base_offset, position)
            )
            segment.size_bytes, segment.end_offset = size_bytes, lost_until
            self.has_lost_end = following is None
        elif segment.size_bytes < size_bytes:
            segment.file.truncate(segment.size_bytes)
            segment.file.sync()
            self.cut_bytes += size_bytes - segment.size_bytes

    def _lost_until(
        self, segment: ActiveSegment, size_bytes: int, following: Offset | None
    ) -> Offset | None:
        """The offset at which the log goes on behind what this segment has lost.

        None when it has lost nothing that was known to be on disk.
        """
        end_offset = segment.end_offset
        if following is None:
            if self.evidence.known_end > end_offset:
                return self.evidence.known_end
            if not self.evidence.is_dense or segment.size_bytes == size_bytes:
                return None
            return misplaced_end(segment.file, segment.size_bytes, size_bytes, end_offset)
        if following > end_offset and (
            self.recovery_point > end_offset
            or self._was_durable(segment)
            or fills(segment.file, segment.size_bytes, size_bytes)
        ):
            return following
        return None

    def _was_durable(self, segment: ActiveSegment) -> bool:
        """True when seals say that more of a segment, or something behind it, was on disk."""
        seals = self.evidence.seals
        if seals and seals[-1] > segment.base_offset:
            return True
        seal = read_seal(self.files, self.directory, segment.base_offset)
        return seal is not None and seal.end_offset > segment.end_offset

    def _load_known_part(
        self, segment: ActiveSegment, size_bytes: int, scan_from: Offset, following: Offset | None
    ) -> None:
        """Take from the stored indexes what lies before `scan_from`, if they are right."""
        self.has_loaded_indexes = False
        if scan_from > segment.base_offset:
            with suppress(IndexDamaged):  # then the whole segment is read
                self._load_known_indexes(segment, size_bytes, scan_from)
        if self.producers_from > segment.base_offset:
            segment.indexes.aborted = self._load_known_aborted(segment.base_offset, following)
        self.epochs.truncate_end(segment.end_offset)

    def _load_known_aborted(
        self, base: Offset, following: Offset | None
    ) -> list[AbortedTransaction]:
        """The aborted transactions that the snapshot's producers know of, if the file is right."""
        seal_crc = None
        if file_name(base, SEAL) in self.names:
            seal = read_seal(self.files, self.directory, base)
            seal_crc = seal.aborted_crc if seal is not None else None
        try:
            known = load_aborted(self.files, self.directory, base, seal_crc)
            known = [item for item in known if item.last_offset < self.producers_from]
            holds_snapshot = following is None or self.producers_from < following
            if seal_crc is None and holds_snapshot and self.snapshot_crc is not None:
                check_aborted(encode_aborted(known), self.snapshot_crc)
        except AbortedDamaged as damage:
            report_aborted(self.directory, base, damage)
            raise AbortedUnknown(base) from None
        return known

    def _load_known_indexes(
        self, segment: ActiveSegment, size_bytes: int, scan_from: Offset
    ) -> None:
        base = segment.base_offset
        end_offset = Offset(base + INT32_MAX)
        indexes = load_indexes(self.files, self.directory, base, end_offset, size_bytes)
        self.has_loaded_indexes = True
        entry = indexes.by_offset.at_or_below(scan_from - base)
        if entry is None:
            return
        relative_offset, position = entry
        _, fields = next(intact_batches(segment.file, position, size_bytes, base), (0, None))
        header = None if fields is None else tuple.__new__(BatchHeader, fields)
        if header is None or header.last_offset != base + relative_offset:
            raise IndexDamaged("the offset index leads to no batch")
        indexes.truncate(position, relative_offset)
        segment.indexes = indexes
        segment.size_bytes = position
        segment.end_offset = Offset(header.base_offset)

    def _scan_intact(self, segment: ActiveSegment, size_bytes: int, placement: Placement) -> None:
        """Note every batch from where the segment ends so far to the first not intact.

        With `intact_batches` this loop decides how long an unclean start takes: what can wait
        until an index entry is due, or until the end, does.
        """
        base = segment.base_offset
        indexes = segment.indexes
        epochs = self.epochs
        position, end_offset = Position(segment.size_bytes), segment.end_offset
        entry_due_at = position + self.interval_bytes - indexes.rest
        newest_ms, latest_epoch = int(indexes.max_timestamp_ms), int(epochs.latest)
        recent: dict[int, deque[tuple[int, ...]]] = {}
        at, fields = 0, None
        for at, fields in intact_batches(
            segment.file, position, size_bytes, end_offset, placement=placement
        ):
            if fields[MAX_TIMESTAMP_FIELD] > newest_ms or at > entry_due_at:
                header = tuple.__new__(BatchHeader, fields)
                indexes.rest = at - entry_due_at + self.interval_bytes
                indexes.note(
                    at,
                    header.size_bytes,
                    header.last_offset - base,
                    header.max_timestamp_ms,
                    self.interval_bytes,
                )
                newest_ms = indexes.max_timestamp_ms
                entry_due_at = at + header.size_bytes + self.interval_bytes - indexes.rest
            if fields[LEADER_EPOCH_FIELD] != latest_epoch:
                epochs.note(
                    LeaderEpoch(fields[LEADER_EPOCH_FIELD]), Offset(fields[BASE_OFFSET_FIELD])
                )
                latest_epoch = int(epochs.latest)
            if fields[PRODUCER_ID_FIELD] >= 0 and fields[BASE_OFFSET_FIELD] >= self.producers_from:
                producer = fields[PRODUCER_ID_FIELD]
                if producer not in recent:
                    recent[producer] = deque(maxlen=BATCHES_KEPT)
                recent[producer].append(fields)
                if fields[ATTRIBUTES_FIELD] & (TRANSACTIONAL | CONTROL):
                    self._note_batches(segment, at, recent.pop(producer))
        for batches in recent.values():
            self._note_batches(segment, position, batches)
        if fields is not None:
            last = tuple.__new__(BatchHeader, fields)
            segment.size_bytes = at + last.size_bytes
            segment.end_offset = Offset(last.last_offset + 1)
            self.read_bytes += segment.size_bytes - position
            self.read_offsets += segment.end_offset - end_offset
        indexes.rest = segment.size_bytes - entry_due_at + self.interval_bytes

    def _note_batches(
        self, segment: ActiveSegment, position: int, batches: Iterable[tuple[int, ...]]
    ) -> None:
        """Note a producer's latest batches; only the last, at `position`, may be a marker."""
        for fields in batches:
            header = tuple.__new__(BatchHeader, fields)
            if header.attributes & CONTROL:
                self._note_marker(segment, position, header)
            else:
                self.producers.note(header, Offset(header.base_offset), self.now_ms)

    def _note_marker(self, segment: ActiveSegment, position: int, header: BatchHeader) -> None:
        try:
            marker = read_marker(segment.file.read(position, header.size_bytes))
        except ApiError:
            return  # its CRC is right: whatever wrote it, it is no marker that we know
        if marker is not None:
            offset = Offset(header.base_offset)
            aborted = self.producers.note_marker(header, offset, marker, self.now_ms)
            if aborted is not None:
                segment.indexes.aborted.append(aborted)

    def _note_corrupt(self, segment: ActiveSegment, resumed: Position, until: Offset) -> None:
        """Note that the bytes from the last intact batch to `resumed` are corrupt."""
        self.corrupt.append(
            CorruptRange(
                segment.end_offset, until, segment.base_offset, Position(segment.size_bytes)
            )
        )
        # No search can walk over what is corrupt: an entry for the last offset before the batch
        # makes every search for what lies behind begin there.
        segment.indexes.by_offset.append(until - 1 - segment.base_offset, resumed)
        segment.size_bytes = resumed
        segment.end_offset = until


def rebuild_indexes(
    files: Files, segment: SealedSegment, before: Sequence[SealedSegment], interval_bytes: int
) -> Indexes:
    """Read a sealed segment again, because what its index files say cannot be true.

    If there is no snapshot of the producers at its start, also the segments before it are read,
    from the last one that there is: a transaction may have begun there.
    """
    base, directory = segment.base_offset, segment.directory
    snapshots = snapshot_offsets(files, directory)
    (producers, _), producers_from = load_producers(files, directory, snapshots, base)
    scan = RecoveryScan(
        files=files,
        directory=directory,
        interval_bytes=interval_bytes,
        now_ms=NO_TIMESTAMP,
        recovery_point=EVERYTHING,
        producers=producers,
        producers_from=producers_from,
        epochs=Epochs(),
        evidence=Evidence(),
        names=set(files.names(segment.directory)),
    )
    for earlier in before:
        if earlier.end_offset > producers_from:
            path = directory / file_name(earlier.base_offset, LOG)
            # While compaction replaces segments, their names are not theirs: they are open then.
            file = earlier.file if earlier.is_warm else files.open(path)
            read = ActiveSegment(directory, earlier.base_offset, file, NO_TIMESTAMP)
            scan.scan_whole(read, earlier.size_bytes, Placement(end_max=earlier.end_offset))
    again = ActiveSegment(directory, base, segment.file, NO_TIMESTAMP)
    scan.scan_whole(again, segment.size_bytes, Placement(end_max=segment.end_offset))
    again.indexes.finish()
    return again.indexes


def _first_timestamp(file: File, now_ms: TimestampMs) -> TimestampMs:
    head = file.read(0, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return now_ms
    header = read_header(head)
    if header.magic != MAGIC or header.max_timestamp_ms < 0:
        return now_ms
    return TimestampMs(min(header.max_timestamp_ms, now_ms))


def report_aborted(directory: Path, base: Offset, damage: AbortedDamaged) -> None:
    """Log that aborted transactions are read off the log again. Nothing is lost by it."""
    path = directory / file_name(base, ABORTED_INDEX)
    _log.error(
        "list of aborted transactions rebuilt",
        extra={"tp": directory.name, "file": str(path), "reason": str(damage)},
    )


def load_producers(
    files: Files,
    directory: Path,
    snapshots: list[Offset],
    recovery_point: Offset,
    state: LogState | None = None,
) -> tuple[Snapshot, Offset]:
    """The producers of `state`, or the newest usable snapshot, and its offset; else none and 0."""
    if state is not None:
        return Snapshot(state.producers, None), state.end_offset
    for offset in snapshots_newest_first(snapshots, recovery_point):
        try:
            data = files.read_whole(file_path(directory, offset, SNAPSHOT))
            return Producers.decode(data), offset
        except (SnapshotDamaged, FileNotFoundError):
            continue
    return Snapshot(Producers(), None), FIRST_OFFSET
