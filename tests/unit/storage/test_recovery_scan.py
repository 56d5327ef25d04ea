"""The end of a log is read again: what counts, what is cut, what is reported as lost."""

from pathlib import Path
from random import Random
from struct import pack

import pytest

from fakes import build
from fakes.logs import SMALL, log_of, rewrite
from fakes.memory_files import MemoryFiles
from ottla.config import INT64_MAX, TopicConfig
from ottla.model import LeaderEpoch, Offset, Position, ProducerEpoch, ProducerId, TimestampMs
from ottla.records.batch import FIRST_OFFSET, Marker, MarkerKind, Record, build_batch
from ottla.storage.batch_scan import Placement
from ottla.storage.damages import CorruptRange
from ottla.storage.epochs import Epochs
from ottla.storage.log import Log
from ottla.storage.log_states import LogState
from ottla.storage.producers import Producers, Snapshot
from ottla.storage.recovery_scan import (
    EVERYTHING,
    AbortedUnknown,
    Evidence,
    RecoveryScan,
    load_producers,
    rebuild_indexes,
)
from ottla.storage.seals import Seal, write_seal

FIRST = build.DIRECTORY / f"{0:020d}.log"
NO_EVIDENCE = Evidence()


def scan_of(
    files: MemoryFiles,
    *,
    recovery_point: Offset = FIRST_OFFSET,
    snapshot: Snapshot | None = None,
    producers_from: Offset = FIRST_OFFSET,
    epochs: Epochs | None = None,
    evidence: Evidence = NO_EVIDENCE,
    is_synced: bool = True,
) -> RecoveryScan:
    """A scan of a log of which nothing else is known."""
    producers, snapshot_crc = snapshot or Snapshot(Producers(), None)
    return RecoveryScan(
        files=files,
        directory=build.DIRECTORY,
        interval_bytes=SMALL.index_interval_bytes,
        now_ms=build.NOW_MS,
        recovery_point=recovery_point,
        producers=producers,
        producers_from=producers_from,
        snapshot_crc=snapshot_crc,
        epochs=epochs or Epochs(),
        evidence=evidence,
        names=set(files.names(build.DIRECTORY)),
        is_synced=is_synced,
    )


def sizes_of(files: MemoryFiles) -> dict[Offset, int]:
    return {
        Offset(int(entry.name.removesuffix(".log"))): entry.size_bytes
        for entry in files.list(build.DIRECTORY)
        if entry.name.endswith(".log")
    }


def path_of(base: int, suffix: str = ".log") -> Path:
    return build.DIRECTORY / f"{base:020d}{suffix}"


def test_a_scan_finds_what_the_log_had(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    scan = scan_of(files)
    active = scan.run(sizes_of(files), Offset(0))
    assert [(one.base_offset, one.end_offset, one.size_bytes) for one in scan.sealed] == [
        (one.base_offset, one.end_offset, one.size_bytes) for one in log.sealed_segments
    ]
    assert (active.base_offset, active.end_offset) == (log.active_segment.base_offset, 60)
    assert active.indexes.by_offset.encode() == log.active_segment.indexes.by_offset.encode()
    assert scan.epochs.entries() == log.epochs.entries() == [(build.EPOCH, 0)]
    assert (scan.corrupt, scan.cut_bytes, scan.has_lost_end) == ([], 0, False)


def test_segments_before_the_first_offset_to_read_are_taken_as_they_are(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    last = log.sealed_segments[-1]
    scan = scan_of(files)
    files.fail_next("open", suffix=path_of(0).name)
    active = scan.run(sizes_of(files), last.base_offset)
    assert [one.base_offset for one in scan.sealed] == [
        one.base_offset for one in log.sealed_segments
    ]
    trusted = scan.sealed[0].unchecked
    assert trusted is not None, "it is checked when it is first read"
    assert active.end_offset == 60
    assert files.has_faults, "the first segment was not opened"


def test_a_trusted_segment_whose_neighbour_left_only_its_seal_has_lost_it(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 30, SMALL)
    log.close()
    first, second, third = log.sealed_segments[:3]
    files.unlink(path_of(second.base_offset))
    scan = scan_of(files, evidence=Evidence(lost=[second.base_offset]))
    scan.run(sizes_of(files), third.base_offset)
    (lost,) = scan.corrupt
    assert (lost.start_offset, lost.end_offset) == (second.base_offset, third.base_offset)
    assert scan.sealed[0].end_offset == third.base_offset, "segments touch"
    assert first.end_offset == second.base_offset


@pytest.mark.parametrize("is_synced", [True, False])
def test_what_a_killed_process_left_in_memory_is_brought_to_disk(is_synced: bool) -> None:
    survived = []
    for seed in range(8):
        files = MemoryFiles()
        files.make_dir(build.DIRECTORY)
        files.create(FIRST).append(build.batch())
        scan_of(files, is_synced=is_synced).run(sizes_of(files), Offset(0))
        after = files.cut_power(Random(seed))
        survived.append(FIRST in after.paths() and len(after.read_whole(FIRST)))
    is_whole = [size == len(build.batch()) for size in survived]
    assert all(is_whole) != is_synced, "nothing is synced that was said to be"


def test_half_a_batch_is_cut_off_for_good(files: MemoryFiles) -> None:
    size_bytes = log_of(files, 3).size_bytes
    files.content(FIRST).extend(build.batch()[:-1])
    scan = scan_of(files)
    active = scan.run(sizes_of(files), Offset(0))
    assert (active.end_offset, active.size_bytes) == (6, size_bytes)
    assert (scan.corrupt, scan.cut_bytes) == ([], len(build.batch()) - 1)
    assert len(files.cut_power(Random(1)).read_whole(FIRST)) == size_bytes


def test_the_bounds_of_batches_are_the_next_segment_or_the_end_at_a_clean_stop() -> None:
    evidence = Evidence(skips=frozenset({9}), is_dense=True, closed_at=Offset(70))
    assert evidence.placement(Offset(40)) == Placement(Offset(40), frozenset({9}))
    assert evidence.placement(None) == Placement(Offset(70), frozenset({9}), True)
    assert Evidence().placement(None) == Placement(INT64_MAX, frozenset())


def test_what_was_known_to_be_on_disk_and_is_gone_moves_the_log_to_a_new_segment(
    files: MemoryFiles,
) -> None:
    log_of(files, 10)
    scan = scan_of(files, evidence=Evidence(known_end=Offset(50)))
    active = scan.run(sizes_of(files), Offset(0))
    assert (active.base_offset, active.size_bytes) == (50, 0)
    assert path_of(50) in files.paths()
    assert [(one.start_offset, one.end_offset) for one in scan.corrupt] == [(20, 50)]
    (sealed,) = scan.sealed
    assert (sealed.end_offset, sealed.size_bytes) == (50, files.size_bytes(FIRST))


def test_epochs_behind_the_end_are_forgotten(files: MemoryFiles) -> None:
    log_of(files, 3)
    epochs = Epochs()
    epochs.note(LeaderEpoch(build.EPOCH), Offset(0))
    epochs.note(LeaderEpoch(build.EPOCH + 1), Offset(6))
    scan = scan_of(files, epochs=epochs)
    scan.run(sizes_of(files), Offset(0))
    assert scan.epochs.entries() == [(build.EPOCH, 0)]


def test_a_segment_is_as_old_as_its_first_batch_and_never_of_the_future(
    files: MemoryFiles,
) -> None:
    for timestamp_ms, opened_ms in (
        (1000, 1000),
        (build.NOW_MS + 5000, build.NOW_MS),
        (-1, build.NOW_MS),
    ):
        disk = MemoryFiles()
        log = build.log(disk)
        batch = build_batch([Record(timestamp_ms=TimestampMs(timestamp_ms))])
        log.append_as_leader(batch, build.EPOCH, build.NOW_MS)
        assert scan_of(disk).run(sizes_of(disk), Offset(0)).opened_ms == opened_ms


def aborted_log(files: MemoryFiles) -> Log:
    """A log with a transaction that was aborted, and a snapshot of producers behind it."""
    log = build.log(files)
    for number in range(2):
        log.append_as_leader(
            build.batch(
                producer_id=1, producer_epoch=0, base_sequence=number, is_transactional=True
            ),
            build.EPOCH,
            build.NOW_MS,
        )
        log.append_marker(
            Marker(MarkerKind.ABORT, 3),
            ProducerId(1),
            ProducerEpoch(0),
            build.EPOCH,
            build.NOW_MS,
        )
    build.enlarge(log)
    log.close()
    return log


def test_aborted_transactions_that_do_not_fit_the_snapshot_are_unknown(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Then producers have to be replayed from the segment's start: the snapshot is too new."""
    log = aborted_log(files)

    def scan() -> RecoveryScan:
        snapshot, offset = load_producers(files, build.DIRECTORY, [log.end_offset], EVERYTHING)
        assert offset == log.end_offset
        return scan_of(files, recovery_point=EVERYTHING, snapshot=snapshot, producers_from=offset)

    active = scan().run(sizes_of(files), log.end_offset)
    assert len(active.indexes.aborted) == 2
    rewrite(files, path_of(0, ".txnindex"), b"")
    with pytest.raises(AbortedUnknown) as unknown:
        scan().run(sizes_of(files), log.end_offset)
    assert unknown.value.segment_base == 0
    assert [record.message for record in caplog.records] == ["list of aborted transactions rebuilt"]


def test_a_transaction_aborted_behind_the_snapshot_is_listed_once(files: MemoryFiles) -> None:
    """The list on disk has it, and it is read off the log again."""
    log = aborted_log(files)
    scan = scan_of(files, recovery_point=EVERYTHING, producers_from=Offset(2))
    active = scan.run(sizes_of(files), Offset(2))
    assert active.indexes.aborted == log.active_segment.indexes.aborted
    assert len(active.indexes.aborted) == 2


def test_indexes_are_rebuilt_as_they_were_written(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(segment_bytes=1024, index_interval_bytes=400))
    for number in range(30):
        batch = build.batch(2, value=bytes(50), timestamp_ms=build.NOW_MS - 1000 + number)
        log.append_as_leader(batch, build.EPOCH, build.NOW_MS)
    log.close()
    assert len(log.sealed_segments) > 1
    for number, segment in enumerate(log.sealed_segments):
        indexes = rebuild_indexes(files, segment, log.sealed_segments[:number], 400)
        base = segment.base_offset
        assert indexes.by_offset.encode() == files.read_whole(path_of(base, ".index"))
        assert indexes.by_time.encode() == files.read_whole(path_of(base, ".timeindex"))


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_a_transaction_that_began_in_an_earlier_segment_is_found_when_indexes_are_rebuilt(
    files: MemoryFiles, has_snapshots: bool
) -> None:
    log = build.log(files)
    log.append_as_leader(
        build.batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
        build.EPOCH,
        build.NOW_MS,
    )
    log.roll(build.NOW_MS)
    log.append_marker(
        Marker(MarkerKind.ABORT, 3), ProducerId(1), ProducerEpoch(0), build.EPOCH, build.NOW_MS
    )
    log.roll(build.NOW_MS)
    log.flush()
    first, second = log.sealed_segments
    if not has_snapshots:
        for path in files.paths():
            if path.suffix == ".snapshot":
                files.unlink(path)
    (aborted,) = rebuild_indexes(files, second, [first], 100).aborted
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 0, 1)


def test_a_control_batch_that_is_no_marker_changes_no_producer() -> None:
    """Its CRC is right: another program wrote it."""
    for key in (None, b"\0\0\0\x02"):
        disk = MemoryFiles()
        log = build.log(disk)
        strange = build_batch(
            [Record(key=key, value=b"")],
            base_offset=log.end_offset,
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            is_transactional=True,
            is_control=True,
        )
        log.active_segment.file.append(strange)
        scan = scan_of(disk)
        assert scan.run(sizes_of(disk), Offset(0)).end_offset == 1
        assert len(scan.producers) == 0


def test_the_newest_snapshot_that_can_be_read_counts(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    for offset, content in ((10, Producers().encode()), (20, b"damaged"), (30, b"behind")):
        files.create(path_of(offset, ".snapshot")).append(content)
    snapshots = [Offset(offset) for offset in (10, 20, 25, 30)]

    def found(recovery_point: int) -> int:
        return load_producers(files, build.DIRECTORY, snapshots, Offset(recovery_point))[1]

    assert found(29) == 10, "20 is damaged, 25 is gone, 30 is behind"
    assert found(9) == 0


def test_damage_in_the_middle_is_walked_around(files: MemoryFiles) -> None:
    log = log_of(files, 10)
    size_bytes = log.size_bytes // 10
    files.flip(FIRST, 4 * size_bytes + 100)
    scan = scan_of(files)
    active = scan.run(sizes_of(files), Offset(0))
    assert scan.corrupt == [
        CorruptRange(Offset(8), Offset(10), Offset(0), Position(4 * size_bytes))
    ]
    assert active.end_offset == 20
    assert active.indexes.by_offset.at_or_below(9) == (9, 5 * size_bytes), "searches begin there"


def state_of(log: Log) -> LogState:
    """The state of a log at its end, as a checkpoint would have it."""
    active = log.active_segment
    encoded = LogState(
        active.base_offset,
        active.size_bytes,
        active.end_offset,
        active.opened_ms,
        active.indexes,
        log.producers,
    ).encode()
    return LogState.decode(encoded)


def test_a_scan_goes_on_from_a_state_and_opens_no_file_if_nothing_followed(
    files: MemoryFiles,
) -> None:
    log = log_of(files, 10)
    state = state_of(log)
    snapshot, producers_from = load_producers(files, build.DIRECTORY, [], Offset(0), state)
    assert (snapshot.producers, producers_from) == (state.producers, 20)
    files.fail_next("open", suffix=".log")
    scan = scan_of(files, snapshot=snapshot, producers_from=producers_from)
    scan.state = state
    active = scan.run(sizes_of(files), producers_from)
    assert (active.end_offset, active.size_bytes) == (20, log.size_bytes)
    assert active.indexes is state.indexes
    assert active.opened_ms == state.opened_ms
    assert files.has_faults, "the segment was not opened"


def test_a_scan_reads_what_lies_behind_a_state(files: MemoryFiles) -> None:
    log = log_of(files, 10)
    state = state_of(log)
    epochs = Epochs()
    epochs.note(LeaderEpoch(build.EPOCH), Offset(0))
    epochs.note(LeaderEpoch(build.EPOCH + 3), Offset(25))  # of what was cut off since
    build.append(log, 2)
    files.flip(FIRST, 100)  # below the state nothing is read
    scan = scan_of(files, producers_from=state.end_offset, epochs=epochs)
    scan.state = state._replace(opened_ms=TimestampMs(build.NOW_MS + 77))
    active = scan.run(sizes_of(files), state.end_offset)
    assert (active.end_offset, active.size_bytes) == (22, log.size_bytes)
    assert active.opened_ms == build.NOW_MS, "never of the future"
    assert (scan.corrupt, scan.epochs.entries()) == ([], [(build.EPOCH, 0)])


@pytest.mark.parametrize("proof", ["none", "its seal", "a later seal", "the recovery point"])
def test_a_torn_segment_that_was_on_disk_has_lost_records(files: MemoryFiles, proof: str) -> None:
    """Without a proof nothing behind the torn batch had been acknowledged."""
    log = log_of(files, 30, SMALL)
    first, second = log.sealed_segments[:2]
    if proof == "its seal":
        write_seal(
            files, build.DIRECTORY, first.base_offset, Seal(first.end_offset, first.size_bytes)
        )
    del files.content(FIRST)[-30:]
    scan = scan_of(
        files,
        evidence=Evidence(seals=[second.base_offset] if proof == "a later seal" else []),
        recovery_point=first.end_offset if proof == "the recovery point" else FIRST_OFFSET,
    )
    active = scan.run(sizes_of(files), Offset(0))
    ranges = [(one.start_offset, one.end_offset) for one in scan.corrupt]
    if proof == "none":
        assert (ranges, active.end_offset) == ([], first.end_offset - 2)
    else:
        assert (ranges, active.end_offset) == ([(first.end_offset - 2, first.end_offset)], 60)


def test_a_segment_with_less_than_a_header_is_as_old_as_the_start(files: MemoryFiles) -> None:
    log = log_of(files, 30, SMALL)
    first, second = log.sealed_segments[:2]
    del files.content(FIRST)[20:]
    scan = scan_of(files, evidence=Evidence(seals=[second.base_offset]))
    scan.run(sizes_of(files), Offset(0))
    (lost,) = scan.corrupt
    assert (lost.start_offset, lost.end_offset) == (0, first.end_offset)


def indexed_log(files: MemoryFiles) -> Log:
    """A log whose first segment is sealed, with its indexes on disk."""
    log = log_of(files, 10, TopicConfig(index_interval_bytes=100))
    log.roll(build.NOW_MS)
    log.flush()
    return log


def test_of_a_segment_only_what_lies_behind_its_last_entry_to_trust_is_read(
    files: MemoryFiles,
) -> None:
    log = indexed_log(files)
    written = files.read_whole(path_of(0, ".index"))
    files.flip(FIRST, 100)
    scan = scan_of(files)
    active = scan.run(sizes_of(files), Offset(15))
    assert (scan.corrupt, active.end_offset) == ([], 20)
    assert files.read_whole(path_of(0, ".index")) == written
    assert scan.sealed[0].size_bytes == log.sealed_segments[0].size_bytes
    again = scan_of(files)
    again.run(sizes_of(files), Offset(0))
    assert again.corrupt, "the flipped bit is found where it is read"


@pytest.mark.parametrize("entry", [None, (2, 33), (5, 0)])
def test_an_index_that_leads_to_no_batch_is_not_used(
    files: MemoryFiles, entry: tuple[int, int] | None
) -> None:
    """An empty one, one into the middle of a batch, and one to a batch of other offsets."""
    log = indexed_log(files)
    written = files.read_whole(path_of(0, ".index"))
    rewrite(files, path_of(0, ".index"), b"" if entry is None else pack(">ii", *entry))
    scan = scan_of(files)
    active = scan.run(sizes_of(files), Offset(15))
    assert (scan.corrupt, active.end_offset) == ([], 20)
    assert scan.sealed[0].size_bytes == log.sealed_segments[0].size_bytes
    assert files.read_whole(path_of(0, ".index")) == written, "it is made again"


def test_producers_are_those_that_the_log_had(files: MemoryFiles) -> None:
    """Of each the latest batches, of those that came one after the other and in turns."""
    log = build.log(files)
    for number in range(9):
        for producer_id in (1, 2):
            if producer_id == 2 or number < 3:
                batch = build.batch(producer_id=producer_id, producer_epoch=0, base_sequence=number)
                log.append_as_leader(batch, build.EPOCH, build.NOW_MS)
    log.append_marker(
        Marker(MarkerKind.COMMIT, 3), ProducerId(5), ProducerEpoch(0), build.EPOCH, build.NOW_MS
    )
    scan = scan_of(files)
    scan.run(sizes_of(files), Offset(0))
    found, known = dict(scan.producers.items()), dict(log.producers.items())
    assert found.keys() == known.keys() == {1, 2, 5}
    for producer_id, producer in known.items():
        assert found[producer_id].batches == producer.batches
        assert found[producer_id].next_sequence == producer.next_sequence
    behind = scan_of(files, producers_from=log.end_offset)
    behind.run(sizes_of(files), Offset(0))
    assert len(behind.producers) == 0, "a snapshot has them"


@pytest.mark.parametrize("is_dense", [True, False])
def test_a_last_batch_with_a_wrong_offset_is_lost_where_there_are_no_gaps(is_dense: bool) -> None:
    """Where compaction leaves gaps, it may be one, or the tail of an interrupted write."""
    for base_offset, end_with_gaps in ((50, 52), (1, 6)):
        disk = MemoryFiles()
        log_of(disk, 3)
        disk.content(FIRST).extend(build.batch(2, base_offset=base_offset))
        scan = scan_of(disk, evidence=Evidence(is_dense=is_dense))
        active = scan.run(sizes_of(disk), Offset(0))
        ranges = [(one.start_offset, one.end_offset) for one in scan.corrupt]
        if is_dense:
            assert (ranges, active.end_offset) == ([(6, 8)], 8)
        else:
            assert (ranges, active.end_offset) == ([], end_with_gaps)
