"""Opening a log after any end: a clean close, a killed process, a power cut, a flipped bit.

Below the recovery point everything was known to be on disk; whether it still is, is looked at when
it is read (see `verification`). Behind it every batch is read again, header chain and CRC, and
index, producers and epochs are rebuilt on the way. What does not check out is one of three things:

* the file ends inside a batch, or in bytes that are no batch with nothing intact behind them:
  a torn tail, never acknowledged as durable, cut off;
* there are intact batches behind it: corruption in the middle. Nothing is deleted; the range is
  remembered, never served, and an operator is told;
* batches are missing that were on disk: below the recovery point, before the end that a clean stop
  has written down, or in a segment that has a seal, or before one. The disk has lost what it
  promised to keep. That is corruption too, up to where the log goes on: no offset is given out
  twice, and what lies behind is served.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ottla.config import INT32_MAX, INT64_MAX
from ottla.errors import ApiError
from ottla.model import NO_TIMESTAMP, NO_UUID, LeaderEpoch, Offset, Position, TimestampMs
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    FIRST_OFFSET,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    read_marker,
)
from ottla.records.crc import crc32c
from ottla.storage.checkpoints import write_checkpoint
from ottla.storage.compaction import CLEAN_OFFSET_FILE
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, load_ranges, merged
from ottla.storage.epochs import Epochs, EpochsDamaged
from ottla.storage.files import Entry, File, Files, Readable, within
from ottla.storage.index import (
    AbortedDamaged,
    AbortedTransaction,
    IndexDamaged,
    check_aborted,
    encode_aborted,
)
from ottla.storage.log_states import LogState, NotedState, StateDamaged
from ottla.storage.names import OFFSET_DIGITS, is_offset
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
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEAL,
    SIDE_SUFFIXES,
    SNAPSHOT,
    SWAP,
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
from ottla.storage.swap import complete_swap, remove_all, remove_cleaned

EVERYTHING: Final = Offset(INT64_MAX)  # the recovery point of a log that was closed cleanly
EPOCHS_FILE: Final = "leader-epoch-checkpoint"  # of a log that Kafka or an older Ottla has written
STRAY: Final = ".stray"  # a segment that nothing connects with the log before it

_log = logging.getLogger("ottla.storage")

_SCAN_BYTES: Final = 4 << 20
_COPIED_BYTES: Final = 1024  # to copy so few bytes costs less than to make a view of them
_MAGIC_AT: Final = 16

# Where in a header's tuple: names cost as much as the rest of what is done for each batch.
_LEADER_EPOCH: Final = BatchHeader._fields.index("leader_epoch")
_ATTRIBUTES: Final = BatchHeader._fields.index("attributes")
_MAX_TIMESTAMP: Final = BatchHeader._fields.index("max_timestamp_ms")
_PRODUCER: Final = BatchHeader._fields.index("producer_id")


class Placement(NamedTuple):
    """What helps to judge a batch that does not follow the one before it at once.

    Compaction leaves gaps, and so does what was lost; but a batch that jumps over the one behind
    it, or over the end, has a wrong offset, which the CRC does not cover.
    """

    end_max: int = INT64_MAX  # no batch reaches behind this offset
    skips: frozenset[int] = frozenset()  # offsets behind what is known to be lost
    is_dense: bool = False  # there are no other gaps before the last batch


_ANYWHERE: Final = Placement()


class Evidence(NamedTuple):
    """What tells a loss from an interrupted write."""

    known_end: Offset = FIRST_OFFSET  # everything below was on disk
    closed_at: Offset | None = None
    seals: Sequence[Offset] = ()
    lost: Sequence[Offset] = ()
    skips: frozenset[int] = frozenset()
    is_dense: bool = False

    def placement(self, following: Offset | None) -> Placement:
        """Where the batches of a segment may lie; `following` is the base of the next one."""
        if following is not None:
            return Placement(following, self.skips)
        return Placement(self.closed_at or INT64_MAX, self.skips, self.is_dense)


@dataclass(slots=True, kw_only=True)
class Recovered:
    """What opening a log found. Taken over, with everything in it, by the log."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    epochs: Epochs
    producers: Producers
    snapshots: list[Offset]
    first_offset: Offset
    lost_seals: list[Offset]  # of segments that are no longer there
    known_corrupt: list[CorruptRange]  # as it is written down
    corrupt: list[CorruptRange]  # that, and what was found now
    is_compacted: bool  # a pass has come to its end here
    is_saved: bool  # what shortens a start lies on disk as it is here
    state: bytes = b""  # the one that the log went on from, if it did
    has_epochs_file: bool = False
    cut_bytes: int = 0


def recover(
    files: Files,
    directory: Path,
    *,
    start_offset: Offset,
    recovery_point: Offset,
    interval_bytes: int,
    now_ms: TimestampMs,
    closed_at: Offset | None = None,
    noted: NotedState | None = None,
    names: Sequence[str] | None = None,
    is_dense: bool = False,
    is_synced: bool = False,
) -> Recovered:
    """Open the log in `directory`, of which everything below `recovery_point` was on disk.

    `closed_at` is where the log ended when it was closed cleanly, if it was and that is known.
    `noted` is the log's entry in the file of all logs' states, if it has one, `names` what lies in
    the directory, if that is known.
    `is_dense` says that the topic is not compacted, `is_synced` that everything which is here is
    on disk: a killed process leaves what it wrote in memory only.
    """
    found = _list(files, directory, names)
    known_end = recovery_point if recovery_point != EVERYTHING else closed_at or FIRST_OFFSET
    if found.lost and (seal := read_seal(files, directory, found.lost[-1])) is not None:
        known_end = max(known_end, seal.end_offset)
    if not found.sizes:
        _begin_behind_loss(files, directory, found, start_offset, known_end)
    known_corrupt = load_ranges(files, directory) if CORRUPT_FILE in found.names else []
    first_base = min(found.sizes)
    first_offset = _first_offset(found, start_offset, first_base, known_corrupt)
    evidence = Evidence(
        known_end=known_end,
        closed_at=closed_at,
        seals=found.seals,
        lost=found.lost,
        skips=frozenset(one.end_offset for one in known_corrupt),
        is_dense=is_dense and recovery_point != EVERYTHING and not found.is_compacted,
    )
    snapshots, snapshot_max = _usable_snapshots(found), recovery_point
    noted = noted or _read_old_epochs(files, directory, found)
    epochs = _decode_epochs(noted.epochs)
    state = None
    if epochs is not None and not known_corrupt:
        state = _usable_state(noted.state, found, recovery_point)
    unknown = set[Offset]()
    while True:
        (producers, aborted_crc), producers_from = _load_producers(
            files, directory, snapshots, snapshot_max, state
        )
        scan_from = min(recovery_point, max(producers_from, first_base))
        if epochs is None:
            epochs, scan_from = Epochs(), first_base
        epochs.truncate_end(recovery_point)  # behind it the log may have been cut off since
        scan = _Scan(
            files=files,
            directory=directory,
            interval_bytes=interval_bytes,
            now_ms=now_ms,
            recovery_point=recovery_point,
            producers=producers,
            producers_from=producers_from,
            snapshot_crc=aborted_crc,
            epochs=epochs,
            evidence=evidence,
            names=found.names,
            state=state,
            is_synced=is_synced or recovery_point == EVERYTHING,
            corrupt=list(known_corrupt),
        )
        if first_offset < first_base:
            missing = CorruptRange(first_offset, first_base, first_offset, Position(0))
            scan.corrupt.append(missing)
        try:
            active = scan.run(found.sizes, scan_from)
        except _AbortedUnknown as problem:
            snapshot_max = problem.segment_base
            unknown.add(snapshot_max)
            epochs = _decode_epochs(noted.epochs)
            continue
        if active.base_offset in unknown:
            write_indexes(files, directory, active.base_offset, active.indexes)
        return Recovered(
            sealed=scan.sealed,
            active=active,
            epochs=epochs,
            producers=producers,
            snapshots=[offset for offset in found.snapshots if offset <= active.end_offset],
            first_offset=first_offset,
            lost_seals=found.lost,
            known_corrupt=known_corrupt,
            corrupt=scan.corrupt,
            is_compacted=found.is_compacted,
            is_saved=_is_saved(scan, active, found.snapshots),
            state=noted.state if state is not None else b"",
            has_epochs_file=EPOCHS_FILE in found.names,
            cut_bytes=scan.cut_bytes,
        )


def begin_empty(directory: Path, now_ms: TimestampMs) -> Recovered:
    """The state of a log that has just been made, with an empty first segment."""
    return Recovered(
        sealed=[],
        active=ActiveSegment(directory, FIRST_OFFSET, None, now_ms),
        epochs=Epochs(),
        producers=Producers(),
        snapshots=[],
        first_offset=FIRST_OFFSET,
        lost_seals=[],
        known_corrupt=[],
        corrupt=[],
        is_compacted=False,
        is_saved=True,
    )


def _read_old_epochs(files: Files, directory: Path, found: "_Found") -> NotedState:
    """What a log without an entry knows: only what Kafka or an older Ottla has left beside it."""
    epochs = b""
    if EPOCHS_FILE in found.names:
        epochs = files.read_whole(within(directory, EPOCHS_FILE))
    return NotedState(NO_UUID, epochs, b"")


def _usable_state(stored: bytes, found: "_Found", recovery_point: Offset) -> LogState | None:
    """The state that a log can go on from; None if there is none, or none that fits its files.

    Only that of the last segment: those before it may have been compacted since.
    """
    if not stored:
        return None
    try:
        state = LogState.decode(stored)
    except StateDamaged as damage:
        _log.error("ignoring the state of a log", extra={"reason": damage})
        return None
    base = max(found.sizes)
    is_there = state.segment_base == base and state.size_bytes <= found.sizes[base]
    return state if is_there and state.end_offset <= recovery_point else None


def _is_saved(scan: "_Scan", active: ActiveSegment, snapshots: Sequence[Offset]) -> bool:
    if scan.state is not None:
        return scan.state.end_offset == active.end_offset
    if scan.recovery_point != EVERYTHING:
        return False
    has_snapshot = active.end_offset in snapshots or active.end_offset == FIRST_OFFSET
    return has_snapshot and (scan.has_loaded_indexes or not active.size_bytes)


class _Found(NamedTuple):
    """What a log's directory holds: all names, and by the offsets in them."""

    names: set[str]
    sizes: dict[Offset, int]
    seals: list[Offset]
    lost: list[Offset]  # seals without their segments
    indexes: list[Offset]  # of a log that has no segment at all
    snapshots: list[Offset]
    is_compacted: bool  # a pass has come to its end here


def _list(files: Files, directory: Path, names: Sequence[str] | None) -> _Found:
    """What is there when everything that was interrupted has been brought to its end."""
    if names is None:
        names = files.names(directory)
    if any(name.endswith((CLEANED, SWAP, DELETED)) for name in names):
        finish_swaps(files, directory)
        finish_deletions(files, directory)
        names = files.names(directory)
    offsets: dict[str, list[Offset]] = {LOG: [], SEAL: [], INDEX: [], SNAPSHOT: []}
    for name in names:
        digits, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
        if suffix in offsets and is_offset(digits):
            offsets[suffix].append(Offset(int(digits)))
    sizes = {base: files.size_bytes(file_path(directory, base, LOG)) for base in offsets[LOG]}
    return _Found(
        names=set(names),
        sizes=sizes,
        seals=offsets[SEAL],
        lost=[base for base in offsets[SEAL] if base not in sizes],
        indexes=offsets[INDEX] if not sizes else [],
        snapshots=offsets[SNAPSHOT],
        is_compacted=CLEAN_OFFSET_FILE in names,
    )


def _usable_snapshots(found: _Found) -> list[Offset]:
    """The snapshots of producers before which every aborted transaction is on disk.

    When a segment ends, its aborted transactions are on disk with its seal, and the snapshot at
    the start of the next one may be there before: then the segment has to be read again.
    """
    sealed = set(found.seals)
    unsealed = {
        following for base, following in pairwise(sorted(found.sizes)) if base not in sealed
    }
    return [offset for offset in found.snapshots if offset not in unsealed]


def _first_offset(
    found: _Found, start_offset: Offset, first_base: Offset, known_corrupt: list[CorruptRange]
) -> Offset:
    """Where the log begins, as far as its files tell: maybe with segments that are lost."""
    before = [one.start_offset for one in known_corrupt if one.end_offset == first_base]
    return max(start_offset, min([first_base, *before, *found.lost, *found.indexes]))


def _begin_behind_loss(
    files: Files, directory: Path, found: _Found, start_offset: Offset, known_end: Offset
) -> None:
    """Begin a log without segments behind `known_end`; what it held before is lost.

    The loss is noted first: once a segment is there, nothing else tells of it.
    """
    base = max(start_offset, known_end)
    if not found.indexes:
        found.indexes.append(start_offset)  # nothing tells where the log began
    first = _first_offset(found, start_offset, base, [])
    if first < base:
        lost = CorruptRange(first, base, first, Position(0))
        ranges = merged([*load_ranges(files, directory), lost])
        write_checkpoint(files, directory / CORRUPT_FILE, map(str, ranges))
    files.create(directory / file_name(base, LOG))
    files.sync_dir(directory)
    found.sizes[base] = 0
    found.names.add(CORRUPT_FILE)


def finish_deletions(files: Files, directory: Path) -> None:
    """Remove what is left of segments that retention has let go of."""
    found = files.list(directory)
    there = {entry.name for entry in found}
    for entry in found:
        if _is_a(entry, LOG + DELETED) and entry.name.removesuffix(DELETED) not in there:
            for suffix in SIDE_SUFFIXES:
                files.unlink(directory / file_name(_offset_of(entry), suffix))
    files.sync_dir(directory)
    remove_all(files, directory, DELETED)


def finish_swaps(files: Files, directory: Path) -> None:
    """Bring the compaction that was interrupted here to its end, or undo it.

    A segment that compaction had committed takes the place of those it was made from; whatever
    was not committed goes.
    """
    found = files.list(directory)
    bases = {_offset_of(entry) for entry in found if _is_a(entry, LOG) or _is_a(entry, SEAL)}
    for entry in found:
        if not _is_a(entry, LOG + SWAP):
            continue
        base = _offset_of(entry)
        end_offset = _end_of_whole(files.open(directory / entry.name), base)
        if end_offset is None:
            _keep_aside(files, directory / entry.name)
        else:
            replaced = [other for other in sorted(bases) if base < other < end_offset]
            complete_swap(files, directory, base, replaced)
    remove_cleaned(files, directory)


def _end_of_whole(file: File, base: Offset) -> Offset | None:
    """Where the batches of a file end; None unless all of it is intact, as it was when synced."""
    size_bytes = file.size_bytes()
    behind, end_offset = 0, base
    for at, fields in intact_batches(file, Position(0), size_bytes, base):
        behind = at + fields[1] + LENGTH_END
        end_offset = Offset(fields[0] + fields[6] + 1)
    return end_offset if behind == size_bytes else None


def _keep_aside(files: Files, path: Path) -> None:
    """The disk has lost what it promised to keep: go on with what the file was made from."""
    files.rename(path, path.with_name(path.name + STRAY))
    files.sync_dir(path.parent)


class _AbortedUnknown(Exception):
    """A segment has lost its aborted transactions: replay its producers from its start."""

    def __init__(self, segment_base: Offset) -> None:
        super().__init__(segment_base)
        self.segment_base = segment_base


def rebuild_indexes(
    files: Files, segment: SealedSegment, before: Sequence[SealedSegment], interval_bytes: int
) -> Indexes:
    """Read a sealed segment again, because what its index files say cannot be true.

    If there is no snapshot of the producers at its start, also the segments before it are read,
    from the last one that there is: a transaction may have begun there.
    """
    base, directory = segment.base_offset, segment.directory
    snapshots = [_offset_of(entry) for entry in files.list(directory) if _is_a(entry, SNAPSHOT)]
    (producers, _), producers_from = _load_producers(files, directory, snapshots, base)
    scan = _Scan(
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
    evidence: Evidence
    names: set[str]  # in the directory
    state: LogState | None = None  # of the last segment
    is_synced: bool = True
    snapshot_crc: int | None = None  # of what the segment with `producers_from` had aborted by then
    sealed: list[SealedSegment] = field(default_factory=list)
    corrupt: list[CorruptRange] = field(default_factory=list)
    cut_bytes: int = 0
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
        """Take a sealed segment as it is: it is looked at when somebody reads it."""
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
        """Where the log goes on behind what this segment has lost; None when it has lost nothing
        that was known to be on disk."""
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
            or _fills(segment, size_bytes)
        ):
            return following
        return None

    def _was_durable(self, segment: ActiveSegment) -> bool:
        """Whether seals say that more of a segment, or something behind it, was on disk."""
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
            raise _AbortedUnknown(base) from None
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
        batch = next(intact_batches(segment.file, position, size_bytes, base), None)
        if batch is None or batch[1][0] + batch[1][6] != base + relative_offset:
            raise IndexDamaged("the offset index leads to no batch")
        indexes.truncate(position, relative_offset)
        segment.indexes = indexes
        segment.size_bytes = position
        segment.end_offset = Offset(batch[1][0])

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
            if fields[_MAX_TIMESTAMP] > newest_ms or at > entry_due_at:
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
            if fields[_LEADER_EPOCH] != latest_epoch:
                epochs.note(LeaderEpoch(fields[_LEADER_EPOCH]), Offset(fields[0]))
                latest_epoch = int(epochs.latest)
            if fields[_PRODUCER] >= 0 and fields[0] >= self.producers_from:
                producer = fields[_PRODUCER]
                if producer not in recent:
                    recent[producer] = deque(maxlen=BATCHES_KEPT)
                recent[producer].append(fields)
                if fields[_ATTRIBUTES] & (TRANSACTIONAL | CONTROL):
                    self._note_batches(segment, at, recent.pop(producer))
        for batches in recent.values():
            self._note_batches(segment, position, batches)
        if fields is not None:
            last = tuple.__new__(BatchHeader, fields)
            segment.size_bytes = at + last.size_bytes
            segment.end_offset = Offset(last.last_offset + 1)
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
        """What lies between the last intact batch and `resumed` is not to be trusted."""
        self.corrupt.append(
            CorruptRange(
                segment.end_offset, until, segment.base_offset, Position(segment.size_bytes)
            )
        )
        # Nobody can walk over what is corrupt: an entry for the last offset before the batch
        # makes every search for what lies behind begin there.
        segment.indexes.by_offset.append(until - 1 - segment.base_offset, resumed)
        segment.size_bytes = resumed
        segment.end_offset = until


def intact_batches(
    file: Readable,
    position: Position,
    size_bytes: int,
    next_offset: int,
    read_bytes: int = _SCAN_BYTES,
    placement: Placement = _ANYWHERE,
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and header fields of every batch up to the first that is not intact.

    This loop decides how long an unclean start takes, so it does nothing that can wait.
    """
    unpack = HEADER.unpack_from
    start = int(position)
    chunk_bytes = read_bytes
    while size_bytes - start >= HEADER_BYTES:
        chunk = file.read(start, min(chunk_bytes, size_bytes - start))
        view = memoryview(chunk)
        at, end = 0, len(chunk)
        behind = HEADER_BYTES
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
            body = (chunk if length < _COPIED_BYTES else view)[at + ATTRIBUTES_AT : behind]
            if crc32c(body) != fields[4]:
                return
            if fields[0] != next_offset and not _is_placed(
                file, fields, next_offset, start + behind, size_bytes, placement
            ):
                return
            next_offset = fields[0] + fields[6] + 1
            yield start + at, fields
            at = behind
        else:
            behind = at + HEADER_BYTES
        if start + behind > size_bytes:
            return
        chunk_bytes = max(read_bytes, behind - at)
        start += at


def _is_placed(
    file: Readable,
    fields: tuple[int, ...],
    next_offset: int,
    behind: int,
    size_bytes: int,
    placement: Placement,
) -> bool:
    """Whether an intact batch that lies behind a gap can have the offset that it says."""
    end_offset = fields[0] + fields[6] + 1
    if end_offset > placement.end_max:
        return False
    if size_bytes - behind < HEADER_BYTES:
        is_known = fields[0] in placement.skips or end_offset == placement.end_max
        return is_known or not placement.is_dense
    follower = read_header(file.read(behind, HEADER_BYTES))
    return follower.magic != MAGIC or not next_offset <= follower.base_offset < end_offset


def misplaced_end(
    file: Readable, position: int, size_bytes: int, next_offset: Offset
) -> Offset | None:
    """Where an intact last batch ends whose own offset is wrong; None if there is none."""
    batch = file.read(position, size_bytes - position)
    if len(batch) < HEADER_BYTES:
        return None
    header = read_header(batch)
    is_intact = (
        header.magic == MAGIC
        and header.size_bytes == len(batch)
        and header.last_offset_delta >= 0
        and crc32c(memoryview(batch)[ATTRIBUTES_AT:]) == header.crc
    )
    return Offset(next_offset + header.last_offset_delta + 1) if is_intact else None


def _is_intact(file: Readable, position: Position, size_bytes: int) -> bool:
    return any(True for _ in intact_batches(file, position, size_bytes, 0))


def _fills(segment: ActiveSegment, size_bytes: int) -> bool:
    """Whether what is left are all the bytes of one batch: then none got lost, some changed."""
    rest_bytes = size_bytes - segment.size_bytes
    if rest_bytes < HEADER_BYTES:
        return False
    header = read_header(segment.file.read(segment.size_bytes, HEADER_BYTES))
    return header.size_bytes == rest_bytes


def find_intact(
    file: Readable,
    position: int,
    size_bytes: int,
    next_offset: Offset,
    end_max: int = INT64_MAX,
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
            if (
                _is_plausible(header, size_bytes - start - candidate, next_offset)
                and header.base_offset < end_max
                and _is_intact(
                    file, Position(start + candidate), start + candidate + header.size_bytes
                )
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
    head = file.read(0, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return now_ms
    header = read_header(head)
    if header.magic != MAGIC or header.max_timestamp_ms < 0:
        return now_ms
    return TimestampMs(min(header.max_timestamp_ms, now_ms))


def report_aborted(directory: Path, base: Offset, damage: AbortedDamaged) -> None:
    """Tell that aborted transactions are read off the log again. Nothing is lost by it."""
    path = directory / file_name(base, ABORTED_INDEX)
    _log.error(
        "rebuilding a list of aborted transactions",
        extra={"tp": directory.name, "file": str(path), "reason": str(damage)},
    )


def _load_producers(
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
    return Snapshot(Producers(), None), Offset(0)


def _decode_epochs(stored: bytes) -> Epochs | None:
    try:
        return Epochs.decode(stored)
    except EpochsDamaged:
        return None


def _is_a(entry: Entry, suffix: str) -> bool:
    return entry.name.endswith(suffix) and is_offset(entry.name[: -len(suffix)])


def _offset_of(entry: Entry) -> Offset:
    return Offset(int(entry.name.partition(".")[0]))
