"""Segments that are read again: what is intact stays, what is not is never served again."""

from pathlib import Path

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from fakes.workers import LaterWorker
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs, TopicPartition, Uuid
from ottla.records.batch import HEADER_BYTES, read_header
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.epochs import EpochOrder, EpochStart
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.recovery_scan import EVERYTHING
from ottla.storage.scrub import STEP_BYTES, Scrubber, SegmentCheck
from ottla.storage.segment import SealedSegment

ROOT = Path("/data")
TP = TopicPartition("orders", 0)
BATCHES = 20
DAY_MS = 86_400_000


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log_dir(files: MemoryFiles) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    log = log_dir.create_log(TP, Uuid(bytes(range(16))), TopicConfig(), build.NOW_MS)
    fill(log)
    return log_dir


@pytest.fixture
def log(log_dir: LogDir) -> Log:
    return log_dir.logs[TP]


def fill(log: Log, value: bytes = b"v" * 2000) -> None:
    """Two sealed segments of twenty batches with two records each, and a batch behind them."""
    for _ in range(2):
        for _ in range(BATCHES):
            log.append_as_leader(build.batch(2, value=value), build.EPOCH, build.NOW_MS)
        log.roll(build.NOW_MS)
    log.append_as_leader(build.batch(2), build.EPOCH, build.NOW_MS)
    log.flush()


def path_of(segment: SealedSegment) -> Path:
    return segment.directory / f"{segment.base_offset:020d}.log"


def batch_positions(files: MemoryFiles, segment: SealedSegment) -> list[int]:
    data, found, at = files.read_whole(path_of(segment)), list[int](), 0
    while at < len(data):
        found.append(at)
        at += read_header(data[at : at + HEADER_BYTES]).size_bytes
    return found


def scrub(files: MemoryFiles, log: Log, scrubber: Scrubber | None = None) -> Scrubber:
    """One whole round."""
    scrubber = scrubber or Scrubber(files, InlineWorker(), ROOT)
    rounds = scrubber.round_count
    for _ in range(1000):
        scrubber.advance([log], TimestampMs(build.NOW_MS + rounds), 0)
        if scrubber.round_count > rounds:
            return scrubber
    raise AssertionError("the round never ends")


def served_offsets(log: Log) -> list[int]:
    """Every offset that a reader gets to see, which steps over what it is refused."""
    seen: list[int] = []
    at = log.start_offset
    while at < log.end_offset:
        try:
            found = log.read(at, log.end_offset, 1 << 20, at_least_one=True)
        except CorruptBatch:
            at = Offset(at + 1)
            continue
        assert found is not None
        data, inside = log.read_bytes(found), 0
        while inside < len(data):
            header = read_header(data[inside : inside + HEADER_BYTES])
            seen += range(max(at, header.base_offset), header.last_offset + 1)
            inside += header.size_bytes
        at = found.end_offset
    return seen


def test_intact_segments_are_read_to_the_end_and_nothing_is_found(
    files: MemoryFiles, log: Log
) -> None:
    scrubber = scrub(files, log)
    assert scrubber.segment_count == 2
    assert scrubber.read_bytes == sum(one.size_bytes for one in log.sealed_segments)
    assert (scrubber.damage_count, log.corrupt) == (0, [])


@pytest.mark.parametrize("place", [8, 16, 21, 30, HEADER_BYTES + 100])
@pytest.mark.parametrize("number", [0, 7, BATCHES - 1])
def test_a_flipped_bit_is_found_and_its_batch_is_never_served_again(
    files: MemoryFiles, log_dir: LogDir, log: Log, number: int, place: int
) -> None:
    segment = log.sealed_segments[1]
    start = segment.base_offset + 2 * number
    files.flip(path_of(segment), batch_positions(files, segment)[number] + place)
    scrubber = scrub(files, log)
    assert scrubber.damage_count == 1
    (damage,) = log.corrupt
    assert (damage.start_offset, damage.end_offset) == (start, start + 2)
    intact = [one for one in range(log.end_offset) if not start <= one < start + 2]
    assert served_offsets(log) == intact
    scrub(files, log, scrubber)
    assert scrubber.damage_count == 1, "what is known already is no news"
    log_dir.close()
    again = LogDir(files.kill(), ROOT)
    again.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    assert again.logs[TP].corrupt == [damage]
    assert served_offsets(again.logs[TP]) == intact


def test_two_damaged_places_are_two_ranges(files: MemoryFiles, log: Log) -> None:
    segment = log.sealed_segments[0]
    positions = batch_positions(files, segment)
    for number in (3, 4, 9):
        files.flip(path_of(segment), positions[number] + 200)
    scrub(files, log)
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(6, 10), (18, 20)]
    assert served_offsets(log) == [*range(6), *range(10, 18), *range(20, log.end_offset)]


def test_a_segment_larger_than_a_step_takes_several(files: MemoryFiles, log: Log) -> None:
    fill(log, bytes(STEP_BYTES // 4))
    segment = log.sealed_segments[-1]
    check, steps = SegmentCheck(segment, segment.directory), 0
    while not check.run_next(files, lambda: None).is_done:
        steps += 1
    assert steps > 2
    assert not check.damages


def test_a_segment_that_goes_while_it_is_read_is_left_alone(files: MemoryFiles, log: Log) -> None:
    log.advance_start(log.sealed_segments[-1].end_offset)
    fill(log, bytes(STEP_BYTES // 4))
    segment = log.sealed_segments[0]
    files.flip(path_of(segment), segment.size_bytes - 200)
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    scrubber.advance([log], build.NOW_MS, DAY_MS)
    assert scrubber.read_bytes < segment.size_bytes, "it is read, and not to its end"
    log.advance_start(log.end_offset)
    scrub(files, log, scrubber)
    assert (scrubber.damage_count, log.corrupt) == (0, [])


def test_a_round_begins_when_its_time_has_come_also_after_a_restart(
    files: MemoryFiles, log: Log
) -> None:
    scrub(files, log)
    later = Scrubber(files, InlineWorker(), ROOT)
    later.advance([log], TimestampMs(build.NOW_MS + DAY_MS - 1), DAY_MS)
    assert later.read_bytes == 0
    later.advance([log], TimestampMs(build.NOW_MS + DAY_MS), DAY_MS)
    assert later.read_bytes > 0


def test_a_broker_with_peers_reads_all_after_a_start(files: MemoryFiles, log: Log) -> None:
    scrub(files, log)
    eager = Scrubber(files, InlineWorker(), ROOT, has_peers=True)
    now_ms = TimestampMs(build.NOW_MS + 1)
    for _ in range(100):
        eager.advance([log], now_ms, DAY_MS)
    assert (eager.round_count, eager.segment_count) == (1, 2), "once"


def test_an_active_segment_that_a_start_has_found_is_read_too(files: MemoryFiles) -> None:
    written = build.log(files)
    for _ in range(3):
        build.append(written)
    assert scrub(files, written).segment_count == 0, "it was written since the start"
    written.flushing.save()
    written.flush()
    noted = build.noted(written)
    files.flip(written.directory / "00000000000000000000.log", 100)
    opened = build.log(files, recovery_point=EVERYTHING, noted=noted)
    assert opened.corrupt == [], "nothing was read"
    assert scrub(files, opened).damage_count == 1
    assert len(opened.corrupt) == 1


def test_damage_of_an_active_segment_that_is_sealed_while_it_is_read_is_noted(
    files: MemoryFiles,
) -> None:
    written = build.log(files)
    for _ in range(3):
        written.append_as_leader(
            build.batch(1, value=bytes(STEP_BYTES // 2)), build.EPOCH, build.NOW_MS
        )
    written.flushing.save()
    written.flush()
    noted = build.noted(written)
    files.flip(written.directory / "00000000000000000000.log", written.size_bytes - 100)
    opened = build.log(files, recovery_point=EVERYTHING, noted=noted)
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    for _ in range(10):
        scrubber.advance([opened], build.NOW_MS, DAY_MS)
        if scrubber.read_bytes:
            break
    assert 0 < scrubber.read_bytes < opened.size_bytes, "it is read, and not to its end"
    opened.roll(build.NOW_MS)
    scrub(files, opened, scrubber)
    assert (scrubber.damage_count, len(opened.corrupt)) == (1, 1)


def test_never_is_never(files: MemoryFiles, log: Log) -> None:
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    for _ in range(10):
        scrubber.advance([log], NO_TIMESTAMP, -1)
    assert scrubber.read_bytes == 0


def test_steps_are_spread_so_that_a_second_reads_what_it_may(files: MemoryFiles, log: Log) -> None:
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    while not scrubber.read_bytes:
        scrubber.advance([log], build.NOW_MS, DAY_MS)
    assert scrubber.round_count == 0, "the other segment is left"
    assert STEP_BYTES / scrubber.rest_s(DAY_MS, 1 << 20) == 1 << 20


def test_a_broker_without_logs_rests(files: MemoryFiles) -> None:
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    scrubber.advance([], build.NOW_MS, interval_ms=-1)
    assert scrubber.rest_s(DAY_MS, 1 << 20) == 1.0


@pytest.mark.parametrize("kind", [IndexError, AssertionError])
def test_a_check_that_fails_costs_one_segment_and_a_broken_assertion_is_raised(
    files: MemoryFiles, log: Log, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise kind("planted")

    monkeypatch.setattr(SegmentCheck, "run_next", fail)
    if kind is AssertionError:
        with pytest.raises(AssertionError, match="planted"):
            scrub(files, log)
    else:
        scrubber = scrub(files, log)
        assert (scrubber.failure_count, scrubber.segment_count) == (2, 0)


def test_a_segment_that_was_cut_short_is_known_soon_after_a_start(
    files: MemoryFiles, log_dir: LogDir, log: Log
) -> None:
    """Long before the round that would read it, and before anybody asks for what is gone."""
    segment = log.sealed_segments[1]
    last = batch_positions(files, segment)[-1]
    log_dir.close()
    files = files.kill()
    del files.content(path_of(segment))[last + 5 :]
    again = LogDir(files, ROOT)
    again.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    scrubber.advance(again.logs.values(), build.NOW_MS, DAY_MS)
    (damage,) = again.logs[TP].corrupt
    assert (damage.start_offset, damage.end_offset) == (
        segment.end_offset - 2,
        segment.end_offset,
    )
    assert (scrubber.damage_count, scrubber.segment_count) == (1, 0)
    reads = files.counts["read"]
    scrubber.advance(again.logs.values(), TimestampMs(build.NOW_MS - DAY_MS), 2 * DAY_MS)
    assert files.counts["read"] <= reads + 1, "the sizes are looked at once"


@pytest.mark.parametrize("is_late", [False, True])
def test_the_sizes_of_a_log_that_is_being_cut_are_looked_at_behind_that(
    files: MemoryFiles, log_dir: LogDir, log: Log, is_late: bool
) -> None:
    """Whether the look begins while it is cut, or comes to its end then."""
    segment = log.sealed_segments[0]
    last = batch_positions(files, segment)[-1]
    log_dir.close()
    files = files.kill()
    del files.content(path_of(segment))[last + 5 :]
    again = LogDir(files, ROOT)
    log = again.open_logs(lambda tp: TopicConfig(), build.NOW_MS)[TP]
    worker = LaterWorker()
    scrubber = Scrubber(files, worker, ROOT)
    if is_late:
        scrubber.advance([log], build.NOW_MS, -1)
        assert worker.steps
    cut = log.truncation.begin(Offset(log.end_offset - 1), build.NOW_MS)
    assert cut is not None
    for _ in range(3):
        scrubber.advance([log], build.NOW_MS, -1)
        worker.work()
    assert (log.corrupt, scrubber.damage_count) == ([], 0)
    cut.run()
    log.truncation.end(cut)
    scrubber.advance([log], build.NOW_MS, -1)
    worker.work()
    assert [one.end_offset for one in log.corrupt] == [segment.end_offset]


def test_segments_of_a_log_that_is_being_cut_are_read_behind_that_and_those_of_others_before(
    files: MemoryFiles, log_dir: LogDir, log: Log
) -> None:
    tp = TopicPartition("orders", 1)
    other = log_dir.create_log(tp, Uuid(bytes(range(16))), TopicConfig(), build.NOW_MS)
    fill(other)
    for one in (log, other):
        files.flip(path_of(one.sealed_segments[0]), 100)
    scrubber = Scrubber(files, InlineWorker(), ROOT)
    cut = log.truncation.begin(Offset(log.end_offset - 1), build.NOW_MS)
    assert cut is not None
    for _ in range(20):
        scrubber.advance([log, other], TimestampMs(build.NOW_MS), 0)
    assert (len(log.corrupt), len(other.corrupt), scrubber.round_count) == (0, 1, 0)
    cut.run()
    log.truncation.end(cut)
    for _ in range(20):
        scrubber.advance([log, other], TimestampMs(build.NOW_MS), DAY_MS)
    assert (len(log.corrupt), len(other.corrupt), scrubber.round_count) == (1, 1, 1)


def test_damage_that_is_found_while_the_log_is_cut_is_looked_for_again_behind_that(
    files: MemoryFiles, log: Log
) -> None:
    files.flip(path_of(log.sealed_segments[0]), 100)
    worker = LaterWorker()
    scrubber = Scrubber(files, worker, ROOT)
    scrubber.advance([log], TimestampMs(build.NOW_MS), 0)
    worker.work()  # of the sizes
    scrubber.advance([log], TimestampMs(build.NOW_MS), 0)
    cut = log.truncation.begin(Offset(log.end_offset - 1), build.NOW_MS)
    assert cut is not None
    worker.work()
    assert log.corrupt == []
    cut.run()
    log.truncation.end(cut)
    while not scrubber.round_count:
        scrubber.advance([log], TimestampMs(build.NOW_MS), 0)
        worker.work()
    assert len(log.corrupt) == 1


@pytest.mark.parametrize("at", [0, 7, BATCHES - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("epoch", [build.EPOCH + 4, 0, 1 << 30], ids=["higher", "lower", "far"])
def test_with_peers_a_batch_with_a_changed_epoch_is_damaged(
    files: MemoryFiles, log: Log, at: int, epoch: int
) -> None:
    segment = log.sealed_segments[1]
    position = batch_positions(files, segment)[at]
    files.content(path_of(segment))[position + 12 : position + 16] = epoch.to_bytes(4, "big")
    assert scrub(files, log).damage_count == 0, "alone, it is better than nothing"
    assert scrub(files, log, Scrubber(files, InlineWorker(), ROOT, has_peers=True)).damage_count
    first = segment.base_offset + 2 * at
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(first, first + 2)]


def test_epochs_of_several_leaders_are_in_order(files: MemoryFiles, log: Log) -> None:
    for leader in range(build.EPOCH + 1, build.EPOCH + 4):
        log.epochs.note(LeaderEpoch(leader), log.end_offset)
        for _ in range(2):
            log.append_as_leader(build.batch(2), LeaderEpoch(leader), build.NOW_MS)
        log.roll(build.NOW_MS)
    scrubber = Scrubber(files, InlineWorker(), ROOT, has_peers=True)
    assert scrub(files, log, scrubber).damage_count == 0
    assert scrubber.segment_count == 5, "all but the active one"


def test_epochs_that_fall_are_damage_where_the_checkpoint_knows_none() -> None:
    order = EpochOrder([EpochStart(LeaderEpoch(5), Offset(100))])
    assert order.admits(0, 3)
    assert order.admits(10, -1)
    assert not order.admits(20, 2)
    assert order.admits(30, 3)
    assert not order.admits(100, 4)
    assert order.admits(100, 5)
