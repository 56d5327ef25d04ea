"""Opening a log after any end: a clean close, a killed process, a power cut, a flipped bit.

Below the recovery point everything was known to be on disk; whether it still is, is looked at when
it is read (see `verification`). Behind it every batch is read again, header chain and CRC, and
index, producers and epochs are rebuilt on the way. What does not check out is one of three things:

* the file ends inside a batch, or in bytes that are no batch with nothing intact behind them:
  a torn tail, never acknowledged as durable, cut off;
* there are intact batches behind it: corruption in the middle. Nothing is deleted; the range is
  remembered, never served, and reported to the operator;
* batches are missing that were on disk: below the recovery point, before the end that a clean stop
  has written down, or in a segment that has a seal, or before one. The disk has lost what it
  promised to keep. That is corruption too, up to where the log goes on: no offset is given out
  twice, and what lies behind is served.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.model import NO_UUID, Offset, Position, TimestampMs
from ottla.records.batch import FIRST_OFFSET
from ottla.storage.damages import CORRUPT_FILE, CorruptRange, load_ranges, merged
from ottla.storage.epochs import Epochs, EpochsDamaged
from ottla.storage.files import Files, within
from ottla.storage.log_files import (
    LogFiles,
    begin_behind_loss,
    first_offset_of,
    list_files,
    usable_snapshots,
)
from ottla.storage.log_states import LogState, NotedState, StateDamaged
from ottla.storage.producers import Producers
from ottla.storage.recovery_scan import (
    EVERYTHING,
    AbortedUnknown,
    Evidence,
    RecoveryScan,
    load_producers,
)
from ottla.storage.seals import read_seal
from ottla.storage.segment import (
    SNAPSHOT,
    ActiveSegment,
    SealedSegment,
    file_path,
    write_indexes,
)

EPOCHS_FILE: Final = "leader-epoch-checkpoint"  # of a log that Kafka or an older Ottla has written

_log = logging.getLogger("ottla.storage")


@dataclass(slots=True, kw_only=True)
class Recovered:
    """The result of opening a log. Owned, with everything in it, by the log."""

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
    read_bytes: int = 0  # of batches that were read to open the log
    read_offsets: int = 0

    def corrupt_from(self, start_offset: Offset) -> list[CorruptRange]:
        """The corrupt ranges that matter, in order, if the log begins at `start_offset`."""
        start, end = max(start_offset, self.first_offset), self.active.end_offset
        return [
            one for one in merged(self.corrupt) if one.start_offset < end and one.end_offset > start
        ]


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
    found = list_files(files, directory, names)
    known_end = recovery_point if recovery_point != EVERYTHING else closed_at or FIRST_OFFSET
    if found.lost and (seal := read_seal(files, directory, found.lost[-1])) is not None:
        known_end = max(known_end, seal.end_offset)
    if not found.sizes:
        begin_behind_loss(files, directory, found, start_offset, known_end)
    known_corrupt = load_ranges(files, directory) if CORRUPT_FILE in found.names else []
    evidence = Evidence(
        known_end=known_end,
        closed_at=closed_at,
        seals=found.seals,
        lost=found.lost,
        skips=frozenset(one.end_offset for one in known_corrupt),
        is_dense=is_dense and recovery_point != EVERYTHING and not found.is_compacted,
    )
    recovery = _Recovery(
        files=files,
        directory=directory,
        found=found,
        first_offset=first_offset_of(found, start_offset, min(found.sizes), known_corrupt),
        recovery_point=recovery_point,
        interval_bytes=interval_bytes,
        now_ms=now_ms,
        noted=noted or _read_old_epochs(files, directory, found),
        known_corrupt=known_corrupt,
        evidence=evidence,
        is_synced=is_synced or recovery_point == EVERYTHING,
    )
    return recovery.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recovery:
    """An opening of a log, with everything that is known before its batches are read."""

    files: Files
    directory: Path
    found: LogFiles
    first_offset: Offset
    recovery_point: Offset
    interval_bytes: int
    now_ms: TimestampMs
    noted: NotedState
    known_corrupt: list[CorruptRange]
    evidence: Evidence
    is_synced: bool

    def run(self) -> Recovered:
        """Read what has to be read, again from an earlier offset if that turns out to be needed."""
        snapshot_max = self.recovery_point
        unknown = set[Offset]()
        while True:
            scan, scan_from = self._begin_scan(snapshot_max)
            try:
                active = scan.run(self.found.sizes, scan_from)
            except AbortedUnknown as problem:
                snapshot_max = problem.segment_base
                assert snapshot_max not in unknown, f"replayed from {snapshot_max} already"
                unknown.add(snapshot_max)
                continue
            if active.base_offset in unknown:
                write_indexes(self.files, self.directory, active.base_offset, active.indexes)
            return self._recovered(scan, active)

    def _begin_scan(self, snapshot_max: Offset) -> tuple[RecoveryScan, Offset]:
        """A scan with the producers of a snapshot up to `snapshot_max`, and its first offset."""
        state, epochs = None, _decode_epochs(self.noted.epochs)
        if epochs is not None and not self.known_corrupt:
            state = _usable_state(self.noted.state, self.found, self.recovery_point)
        first_base = min(self.found.sizes)
        (producers, aborted_crc), producers_from = load_producers(
            self.files, self.directory, usable_snapshots(self.found), snapshot_max, state
        )
        scan_from = min(self.recovery_point, max(producers_from, first_base))
        if epochs is None:
            epochs, scan_from = Epochs(), first_base
        epochs.truncate_end(self.recovery_point)  # behind it the log may have been cut off since
        scan = RecoveryScan(
            files=self.files,
            directory=self.directory,
            interval_bytes=self.interval_bytes,
            now_ms=self.now_ms,
            recovery_point=self.recovery_point,
            producers=producers,
            producers_from=producers_from,
            snapshot_crc=aborted_crc,
            epochs=epochs,
            evidence=self.evidence,
            names=self.found.names,
            state=state,
            is_synced=self.is_synced,
            corrupt=list(self.known_corrupt),
        )
        if self.first_offset < first_base:
            missing = CorruptRange(self.first_offset, first_base, self.first_offset, Position(0))
            scan.corrupt.append(missing)
        return scan, scan_from

    def _recovered(self, scan: RecoveryScan, active: ActiveSegment) -> Recovered:
        found = self.found
        snapshots = self._remove_snapshots_behind(active.end_offset)
        return Recovered(
            sealed=scan.sealed,
            active=active,
            epochs=scan.epochs,
            producers=scan.producers,
            snapshots=snapshots,
            first_offset=self.first_offset,
            lost_seals=found.lost,
            known_corrupt=self.known_corrupt,
            corrupt=scan.corrupt,
            is_compacted=found.is_compacted,
            is_saved=_is_saved(scan, active, found.snapshots),
            state=self.noted.state if scan.state is not None else b"",
            has_epochs_file=EPOCHS_FILE in found.names,
            cut_bytes=scan.cut_bytes,
            read_bytes=scan.read_bytes,
            read_offsets=scan.read_offsets,
        )

    def _remove_snapshots_behind(self, end_offset: Offset) -> list[Offset]:
        """The snapshots that are left. Others are of records that are gone: when the log has grown
        beyond them they would pass for those of what is there then."""
        snapshots = self.found.snapshots
        kept = [offset for offset in snapshots if offset <= end_offset]
        for offset in snapshots:
            if offset > end_offset:
                self.files.unlink(file_path(self.directory, offset, SNAPSHOT))
        if len(kept) < len(snapshots):
            self.files.sync_dir(self.directory)
        return kept


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


def _read_old_epochs(files: Files, directory: Path, found: LogFiles) -> NotedState:
    """The epochs of a log without an entry, as Kafka or an older Ottla has left them beside it."""
    epochs = b""
    if EPOCHS_FILE in found.names:
        epochs = files.read_whole(within(directory, EPOCHS_FILE))
    return NotedState(NO_UUID, epochs, b"")


def _usable_state(stored: bytes, found: LogFiles, recovery_point: Offset) -> LogState | None:
    """The state that a log can go on from; None if there is none, or none that fits its files.

    Only that of the last segment: those before it may have been compacted since.
    """
    if not stored:
        return None
    try:
        state = LogState.decode(stored)
    except StateDamaged as damage:
        _log.error("log state ignored", extra={"reason": damage})
        return None
    base = max(found.sizes)
    is_there = state.segment_base == base and state.size_bytes <= found.sizes[base]
    return state if is_there and state.end_offset <= recovery_point else None


def _is_saved(scan: RecoveryScan, active: ActiveSegment, snapshots: Sequence[Offset]) -> bool:
    if scan.state is not None:
        return scan.state.end_offset == active.end_offset
    if scan.recovery_point != EVERYTHING:
        return False
    has_snapshot = active.end_offset in snapshots or active.end_offset == FIRST_OFFSET
    return has_snapshot and (scan.has_loaded_indexes or not active.size_bytes)


def _decode_epochs(stored: bytes) -> Epochs | None:
    try:
        return Epochs.decode(stored)
    except EpochsDamaged:
        return None
