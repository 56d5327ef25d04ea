"""The state that the parts of a log share: writing, rolling, durability, failure."""

import errno
import gc
import os
from itertools import pairwise
from weakref import ref

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import SMALL, append, fill, names_of, state_of
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import DiskFull, StorageFailed
from ottla.model import Offset, Position, TimestampMs, TopicPartition
from ottla.storage.damages import CORRUPT_FILE, CorruptRange
from ottla.storage.log_core import NOT_SAVED, LogCore
from ottla.storage.log_listener import LogListener, SilentListener
from ottla.storage.open_files import OpenFiles
from ottla.storage.recovery_scan import EVERYTHING


def test_a_full_segment_is_followed_by_the_next(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    names = [entry.name for entry in files.list(log.directory) if entry.name.endswith(".log")]
    assert names == [
        f"{base:020d}.log"
        for base in (
            *(segment.base_offset for segment in log.sealed_segments),
            log.active_segment.base_offset,
        )
    ]
    assert all(segment.size_bytes <= 1024 for segment in log.sealed_segments)


def test_an_old_segment_is_followed_by_the_next(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(segment_ms=1000))
    build.append(log)
    log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(build.NOW_MS + 999))
    assert not log.sealed_segments
    log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(build.NOW_MS + 1000))
    assert len(log.sealed_segments) == 1


def test_jitter_ends_segments_early_each_at_a_time_of_its_own(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(segment_ms=1000, segment_jitter_ms=500))
    rolled_ms = []
    for now_ms in range(build.NOW_MS, build.NOW_MS + 20_000):
        count = len(log.sealed_segments)
        log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(now_ms))
        if len(log.sealed_segments) > count:
            rolled_ms.append(now_ms)
    ages_ms = [later - earlier for earlier, later in pairwise(rolled_ms)]
    assert all(500 < age_ms <= 1000 for age_ms in ages_ms)
    assert len(set(ages_ms)) > 10


def test_more_jitter_than_a_segment_may_be_old_is_as_much_as_that(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(segment_ms=1000, segment_jitter_ms=10**15))
    for now_ms in range(build.NOW_MS, build.NOW_MS + 5000, 1000):
        log.append_as_leader(build.batch(), build.EPOCH, TimestampMs(now_ms))
        assert now_ms - 1000 < log.active_segment.opened_ms <= now_ms


def test_a_new_log_has_jitter_as_well(files: MemoryFiles) -> None:
    core = LogCore(
        build.TP,
        files,
        build.DIRECTORY,
        TopicConfig(segment_jitter_ms=1 << 20),
        start_offset=Offset(0),
        recovery_point=Offset(0),
        listener=SilentListener(),
        open_files=OpenFiles(),
    )
    assert core.begin_empty(build.NOW_MS).active.opened_ms < build.NOW_MS


def test_offsets_too_far_apart_for_one_index_get_a_new_segment(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    log.append_as_follower(build.batch(base_offset=2**30), build.NOW_MS)
    log.append_as_follower(build.batch(base_offset=2**31 + 5), build.NOW_MS)
    assert [segment.base_offset for segment in log.sealed_segments] == [0]
    found = log.read(Offset(2**30 + 1), log.end_offset, 1000, at_least_one=True)
    assert found is not None
    assert found.end_offset == 2**31 + 6
    log.close()
    assert build.log(files, recovery_point=EVERYTHING).end_offset == 2**31 + 6


def test_an_empty_segment_is_not_rolled(files: MemoryFiles) -> None:
    log = build.log(files)
    log.roll(build.NOW_MS)
    assert not log.sealed_segments


def test_a_roll_that_finds_no_room_leaves_no_half_index(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    build.append(log, 3)
    files.fail_next("create", errno.ENOSPC, suffix=".log")
    with pytest.raises(DiskFull):
        log.roll(build.NOW_MS)
    assert not names_of(files, log, ".tmp", ".saving")
    log.roll(build.NOW_MS)
    log.flush()
    assert len(log.sealed_segments) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after_bytes", [0, 30, 70])
def test_a_full_disk_costs_the_batch_and_nothing_else(
    files: MemoryFiles, number: int, after_bytes: int
) -> None:
    log = build.log(files)
    build.append(log, 2)
    before = state_of(log)
    files.fail_next("append", number, after_bytes=after_bytes)
    with pytest.raises(StorageFailed, match="full"):
        append(log, build.batch(producer_id=1, producer_epoch=0, base_sequence=0))
    assert state_of(log) == before
    assert len(files.read_whole(log.directory / f"{0:020d}.log")) == log.size_bytes
    assert log.read(Offset(0), log.end_offset, 1000, at_least_one=True) is not None
    assert build.append(log) == 2


@pytest.mark.parametrize("suffix", [".index.tmp", ".timeindex.tmp", ".snapshot"])
@pytest.mark.parametrize("operation", ["create", "append"])
def test_a_disk_that_fills_up_while_rolling_loses_nothing(
    files: MemoryFiles, operation: str, suffix: str
) -> None:
    log = build.log(files, SMALL)
    build.append(log, value=bytes(600))
    files.fail_next(operation, errno.ENOSPC, suffix=suffix)
    with pytest.raises(StorageFailed, match="full"):
        build.append(log, value=bytes(600))
    assert log.end_offset == 1
    assert build.append(log, value=bytes(600)) == 1
    assert build.log(files.kill(), SMALL).end_offset == 2


def test_a_full_disk_that_cannot_even_be_tidied_is_a_failing_one(files: MemoryFiles) -> None:
    log = build.log(files)
    files.fail_next("append", errno.ENOSPC, after_bytes=10)
    files.fail_next("truncate", errno.EIO)
    with pytest.raises(StorageFailed):
        build.append(log)
    assert log.offline_reason is not None


def test_a_log_that_grows_fast_asks_to_be_flushed(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, SMALL, listener=listener)
    asked: list[int] = []
    listener.on_crowded = lambda: asked.append(len(log.sealed_segments))
    fill(log, 5)
    assert asked == [4, 5]
    listener.on_crowded = log.flush
    fill(log, 20)
    assert sum(segment.is_warm for segment in log.sealed_segments) <= 12


# The core by itself


class NotedListener(SilentListener):
    """Keeps what it is notified of."""

    def __init__(self) -> None:
        self.durable: list[TopicPartition] = []
        self.failed: list[OSError] = []

    def note_durable(self, tp: TopicPartition) -> None:
        self.durable.append(tp)

    def note_failed(self, tp: TopicPartition, error: OSError) -> None:
        self.failed.append(error)


def core_of(
    files: MemoryFiles,
    config: TopicConfig = SMALL,
    *,
    start_offset: int = 0,
    listener: LogListener | None = None,
    open_files: OpenFiles | None = None,
) -> LogCore:
    """A core with what lies in the log's directory."""
    files.make_dir(build.DIRECTORY)
    core = LogCore(
        build.TP,
        files,
        build.DIRECTORY,
        config,
        start_offset=Offset(start_offset),
        recovery_point=Offset(0),
        listener=listener or SilentListener(),
        open_files=open_files or OpenFiles(),
    )
    core.adopt(core.recover(Offset(0), build.NOW_MS))
    return core


def write(core: LogCore, size_bytes: int = 500) -> None:
    """Write a batch of one record; its bytes do not matter to the core."""
    last = core.end_offset
    core.write(bytearray(size_bytes), last, build.NOW_MS, build.NOW_MS)


def test_the_end_and_the_size_follow_what_is_written(files: MemoryFiles) -> None:
    core = core_of(files)
    for number in range(1, 6):
        write(core, 300)
        assert (core.end_offset, core.size_bytes) == (number, 300 * number)
    assert [one.base_offset for one in core.segments.all()] == [0, 3]
    assert core.segments_created == 1


def test_a_batch_that_fills_a_segment_exactly_stays_in_it(files: MemoryFiles) -> None:
    core = core_of(files)
    write(core, 1000)
    write(core, 24)
    assert len(core.segments.all()) == 1
    write(core, 1)
    assert len(core.segments.all()) == 2


def test_a_roll_leaves_a_file_to_sync_and_a_snapshot_of_producers(files: MemoryFiles) -> None:
    core = core_of(files)
    write(core)
    sealed = core.segments.active.file
    core.roll(build.NOW_MS)
    assert core.unsynced == [sealed]
    assert build.DIRECTORY / f"{1:020d}.snapshot" in files.paths()


def test_a_process_without_descriptors_costs_the_batch_and_nothing_else(
    files: MemoryFiles,
) -> None:
    """Nothing was written, so nothing is cut off."""
    core = core_of(files)
    write(core, 800)
    files.fail_next("create", errno.EMFILE, suffix=".log")
    files.fail_next("truncate")
    with pytest.raises(StorageFailed, match=f"cannot be opened now: {os.strerror(errno.EMFILE)}"):
        write(core, 800)
    assert core.offline_reason is None
    assert files.has_faults, "no file was truncated"
    assert (core.end_offset, core.size_bytes) == (1, 800)


def test_readers_are_remembered_and_the_oldest_is_forgotten_for_the_newest(
    files: MemoryFiles,
) -> None:
    core = core_of(files)
    active = core.segments.active
    for number in range(64 + 3):
        core.remember(Offset(number), active, Position(number))
    assert list(core.hints) == list(range(3, 67))
    assert core.hints[Offset(66)] == (active, 66)


def test_the_end_of_a_sealed_segment_is_not_remembered_as_a_position_in_it(
    files: MemoryFiles,
) -> None:
    core = core_of(files)
    write(core)
    core.roll(build.NOW_MS)
    (sealed,) = core.segments.sealed
    core.remember(Offset(1), sealed, Position(500))
    assert core.hints == {}
    core.remember(Offset(0), sealed, Position(0))
    core.remember(Offset(1), core.segments.active, Position(0))
    assert core.hints == {0: (sealed, 0), 1: (core.segments.active, 0)}


def test_a_roll_forgets_where_readers_are(files: MemoryFiles) -> None:
    core = core_of(files)
    write(core)
    core.remember(Offset(1), core.segments.active, Position(500))
    core.roll(build.NOW_MS)
    assert core.hints == {}


def test_the_durable_offset_only_rises_and_each_rise_is_reported(files: MemoryFiles) -> None:
    listener = NotedListener()
    core = core_of(files, listener=listener)
    for _ in range(3):
        write(core, 10)
    for offset, durable in ((2, 2), (1, 2), (2, 2), (3, 3)):
        core.note_durable(Offset(offset))
        assert core.durable_offset == durable
    assert listener.durable == [build.TP] * 2
    with pytest.raises(AssertionError, match="orders-0: 4 is behind the end"):
        core.note_durable(Offset(4))


def test_a_log_wants_a_sync_until_records_and_indexes_are_on_disk(files: MemoryFiles) -> None:
    core = core_of(files)
    assert not core.wants_sync
    write(core)
    assert core.wants_sync
    core.note_durable(Offset(1))
    assert not core.wants_sync
    core.roll(build.NOW_MS)
    assert core.wants_sync, "the indexes of a sealed segment are in memory"


def test_files_stay_open_until_they_are_on_disk(files: MemoryFiles) -> None:
    core = core_of(files)
    write(core)
    assert not core.release_files()
    core.note_durable(Offset(1))
    core.unsynced.append(core.segments.active.file)
    assert not core.release_files()
    core.unsynced.clear()
    assert core.release_files()


def test_the_first_failure_is_the_reason_and_each_is_reported(files: MemoryFiles) -> None:
    listener = NotedListener()
    core = core_of(files, listener=listener)
    first, second = OSError(errno.EIO, "bad sector"), OSError(errno.EIO, "gone")
    assert str(core.fail(first)) == "the disk failed: [Errno 5] bad sector"
    assert str(core.fail(second)) == "the disk failed: [Errno 5] gone"
    assert core.offline_reason == "the disk failed: [Errno 5] bad sector"
    assert listener.failed == [first, second]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_a_file_that_only_shortens_a_start_may_find_no_room(
    files: MemoryFiles, number: int
) -> None:
    core = core_of(files)
    core.tolerate_full_disk(OSError(number, "no room"))
    assert core.offline_reason is None
    core.tolerate_full_disk(OSError(errno.EIO, "bad sector"))
    assert core.offline_reason == "the disk failed: [Errno 5] bad sector"


def test_a_deleted_log_is_offline_and_reports_nothing(files: MemoryFiles) -> None:
    listener = NotedListener()
    core = core_of(files, listener=listener)
    write(core)
    core.retire("the topic was deleted")
    assert core.offline_reason == "the topic was deleted"
    core.note_durable(Offset(1))
    core.fail(OSError(errno.ENOENT, "no such file"))
    assert (listener.durable, listener.failed) == ([], [])
    assert core.offline_reason == "the topic was deleted"


class CountedOpenFiles(OpenFiles):
    """Says how many logs it would have close their files."""

    @property
    def holder_count(self) -> int:
        return len(self._holders)


def test_a_deleted_log_is_not_asked_to_close_files(files: MemoryFiles) -> None:
    open_files = CountedOpenFiles()
    core = core_of(files, open_files=open_files)
    assert open_files.holder_count == 1
    core.retire("the topic was deleted")
    assert open_files.holder_count == 0


def test_a_deleted_log_goes_with_its_last_reference_and_its_files_with_it(
    files: MemoryFiles,
) -> None:
    """In a cycle they would stay open until the garbage collector runs."""
    core = core_of(files)
    write(core)
    core.roll(build.NOW_MS)
    core.retire("the topic was deleted")
    gone = ref(core)
    gc.disable()
    try:
        del core
        assert gone() is None
    finally:
        gc.enable()


def test_damage_outside_the_log_is_forgotten_when_it_is_opened(files: MemoryFiles) -> None:
    files.make_dir(build.DIRECTORY)
    log = build.log(files)
    for _ in range(10):
        build.append(log)
    core = core_of(files, start_offset=4)
    found = core.recover(Offset(0), build.NOW_MS)
    found.corrupt = [
        CorruptRange(Offset(start), Offset(end), Offset(0), Position(0))
        for start, end in ((0, 4), (2, 5), (8, 9), (10, 12))
    ]
    core.adopt(found)
    kept = [(one.start_offset, one.end_offset) for one in core.damages.ranges]
    assert kept == [(2, 5), (8, 9)]
    assert build.DIRECTORY / CORRUPT_FILE in files.paths()


def test_a_log_does_not_start_before_its_first_segment(files: MemoryFiles) -> None:
    log = build.log(files, start_offset=7)
    build.append(log)
    assert core_of(files, start_offset=3).start_offset == 7
    assert core_of(files, start_offset=8).start_offset == 8


def test_a_log_that_has_just_been_made_is_empty_and_has_nothing_to_save(
    files: MemoryFiles,
) -> None:
    core = core_of(files)
    found = core.begin_empty(build.NOW_MS)
    core.timeline = 3
    core.adopt(found)
    assert (core.start_offset, core.end_offset, core.size_bytes) == (0, 0, 0)
    assert core.saved_end == (3, 0)
    found.is_saved = False
    core.adopt(found)
    assert core.saved_end == NOT_SAVED
