"""The file of all logs' states: what it holds, when it is believed, and what is lost without it."""

import errno
import logging
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import CorruptBatch
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition, Uuid
from ottla.records.batch import Marker, MarkerKind, Record, build_batch, read_header
from ottla.storage.cleaner import Cleaner
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_states import (
    STATE_BYTES_MAX,
    FoundStates,
    LogState,
    NotedState,
    StateDamaged,
    decode_states,
    encode_states,
    fits,
)

ROOT = Path("/data")
STATES = ROOT / "log-states"
ORDERS, CLICKS = TopicPartition("orders", 0), TopicPartition("web-clicks", 12)
TOPIC_ID, OTHER_ID = Uuid(bytes(range(16))), Uuid(bytes(range(1, 17)))
CONFIG = TopicConfig(index_interval_bytes=100)
IGNORED = "checkpoint ignored"


def open_dir(files: MemoryFiles, config: TopicConfig = CONFIG) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: config, build.NOW_MS)
    return log_dir


def used(log: Log) -> Log:
    """The log with epochs, index entries, producers, and transactions that were aborted."""
    for number in range(12):
        build.append(log, 2, epoch=number // 4, value=bytes(60))
    for producer in (1, 2, 3):
        batch = build.batch(
            2, producer_id=producer, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        log.append_as_leader(batch, LeaderEpoch(4), build.NOW_MS)
    for producer, kind in ((2, MarkerKind.ABORT), (1, MarkerKind.COMMIT)):
        log.append_marker(
            Marker(kind, 0), ProducerId(producer), ProducerEpoch(0), LeaderEpoch(4), build.NOW_MS
        )
    return log


def filled(files: MemoryFiles) -> LogDir:
    log_dir = open_dir(files)
    for tp, topic_id in ((ORDERS, TOPIC_ID), (CLICKS, OTHER_ID)):
        used(log_dir.create_log(tp, topic_id, CONFIG, build.NOW_MS))
    return log_dir


def knowledge(log: Log) -> tuple[object, ...]:
    """Everything that a state is to bring back."""
    active = log.active_segment
    indexes = active.indexes
    return (
        (log.start_offset, log.end_offset, log.size_bytes, log.corrupt),
        log.epochs.entries(),
        log.producers.encode(),
        (active.base_offset, active.size_bytes, active.end_offset),
        (indexes.by_offset.encode(), indexes.by_time.encode(), indexes.aborted),
        (indexes.max_timestamp_ms, indexes.max_timestamp_at, indexes.rest),
        log.last_stable_offset(log.end_offset),
    )


def known(log_dir: LogDir) -> dict[TopicPartition, tuple[object, ...]]:
    return {tp: knowledge(log) for tp, log in log_dir.logs.items()}


def test_a_state_is_what_it_was() -> None:
    log = used(build.log(MemoryFiles(), CONFIG))
    log.close()
    state = LogState.decode(log.flushing.state)
    assert (state.segment_base, state.end_offset) == (0, log.end_offset)
    assert len(state.indexes.by_offset) > 3
    assert state.indexes.aborted == log.aborted_transactions(Offset(0), log.end_offset) != []
    assert state.encode() == log.flushing.state


@pytest.mark.parametrize("size_bytes", [0, 1, 40, 100])
def test_a_state_that_ends_early_is_damaged(size_bytes: int) -> None:
    log = used(build.log(MemoryFiles(), CONFIG))
    log.close()
    with pytest.raises(StateDamaged):
        LogState.decode(log.flushing.state[:size_bytes])


def test_entries_come_back_under_their_topic_ids() -> None:
    noted = {
        ORDERS: NotedState(TOPIC_ID, b"0\n0\n", b"a state"),
        CLICKS: NotedState(OTHER_ID, b"0\n1\n3 0\n", b""),
    }
    found = decode_states(encode_states(noted))
    assert found == FoundStates(noted)
    assert found.of(ORDERS, TOPIC_ID) == noted[ORDERS]
    assert found.of(ORDERS, OTHER_ID) is None, "the topic was made again"
    assert found.of(TopicPartition("orders", 1), TOPIC_ID) is None


def test_no_bit_of_the_file_can_change_an_entry_that_is_believed() -> None:
    noted = {
        TopicPartition("t", number): NotedState(TOPIC_ID, b"0\n0\n", bytes([number]) * 9)
        for number in range(5)
    }
    content = encode_states(noted)
    for at in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            found = decode_states(bytes(changed))
            assert found.problem is not None
            assert len(found.entries) < len(noted)
            assert found.entries.items() <= noted.items()


def test_a_file_that_was_cut_off_says_how_many_entries_it_has_lost() -> None:
    noted = {
        TopicPartition("t", number): NotedState(TOPIC_ID, b"0\n0\n", b"") for number in range(5)
    }
    content = encode_states(noted)
    assert decode_states(content[:-1]).problem == "1 of 5 entries are damaged"
    assert decode_states(b"").problem == "its first bytes are damaged"


def test_epochs_that_do_not_fit_an_entry_are_left_to_the_log() -> None:
    noted = {ORDERS: NotedState(TOPIC_ID, b"0" * 70_000, b"a state")}
    assert decode_states(encode_states(noted)).entries[ORDERS] == (TOPIC_ID, b"", b"a state")


def test_what_fits_is_not_larger_than_promised() -> None:
    log = build.log(MemoryFiles(), TopicConfig(index_interval_bytes=0))
    while fits(log.active_segment.indexes, log.producers):
        log.close()
        assert len(log.flushing.state) <= STATE_BYTES_MAX + 200
        build.append(log)
    log.close()
    assert log.flushing.state == b""


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("behind", [0, 3])
def test_a_log_goes_on_from_its_state(is_clean: bool, behind: int) -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    for log in log_dir.logs.values():
        log.flush()
    log_dir.checkpoint()
    for log in log_dir.logs.values():
        for _ in range(behind):
            build.append(log, 2, epoch=9, value=bytes(60))
    if is_clean:
        log_dir.close()
    before, after = known(log_dir), files.kill()
    if is_clean:
        after.fail_next("open", suffix=".log")
    again = open_dir(after)
    assert known(again) == before
    if is_clean:
        assert after.has_faults, "no segment was opened"
        return
    for log in again.logs.values():
        build.append(log, 2, epoch=10)
        assert log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True) is not None


def test_a_state_with_which_the_segment_does_not_agree_is_not_used() -> None:
    """The segment has lost its end, or another one was begun: nothing is believed blindly."""
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.close()
    path = ROOT / str(ORDERS) / f"{0:020d}.log"
    files.open(path).truncate(len(files.read_whole(path)) - 1)
    log = open_dir(files.kill()).logs[ORDERS]
    end = log_dir.logs[ORDERS].end_offset
    assert [(one.start_offset, one.end_offset) for one in log.corrupt] == [(end - 1, end)]
    assert log.end_offset == end


def test_a_log_that_has_rolled_since_is_read_from_the_segment_of_its_recovery_point_on() -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.checkpoint()
    log = log_dir.logs[ORDERS]
    log.roll(build.NOW_MS)
    build.append(log, 2, epoch=9)
    log.flush()
    before = knowledge(log)
    again = open_dir(files.kill()).logs[ORDERS]
    assert knowledge(again) == before
    assert again.aborted_transactions(Offset(0), again.end_offset) == log.aborted_transactions(
        Offset(0), log.end_offset
    )


def test_a_segment_that_was_compacted_since_is_not_read_by_an_older_state() -> None:
    files = MemoryFiles()
    config = TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.1)
    log_dir = open_dir(files, config)
    log = log_dir.create_log(ORDERS, TOPIC_ID, config, build.NOW_MS)

    def write(count: int) -> None:
        for number in range(count):
            key = b"%d" % (number % 3)
            record = Record(timestamp_ms=build.NOW_MS, key=key, value=bytes(90))
            log.append_as_leader(build_batch([record]), build.EPOCH, build.NOW_MS)

    write(30)
    log.flush()
    log_dir.checkpoint()
    write(10)
    log.roll(build.NOW_MS)
    write(40)
    log.flush()
    Cleaner(files, InlineWorker()).begin([(log, log.end_offset)], build.NOW_MS, 1 << 20)
    assert log.sealed_segments[0].size_bytes < LogState.decode(log.flushing.state).size_bytes
    assert log.active_segment.size_bytes > LogState.decode(log.flushing.state).size_bytes
    again = open_dir(files.kill(), config).logs[ORDERS]
    assert (again.end_offset, again.corrupt, again.size_bytes) == (80, [], log.size_bytes)
    for at in range(37, 80):
        assert again.read(Offset(at), again.end_offset, 1, at_least_one=True) is not None


def test_what_lies_behind_damage_is_found_though_a_state_is_older_than_the_damage() -> None:
    files, plain = MemoryFiles(), TopicConfig()  # of which no index leads over the damage
    log_dir = open_dir(files, plain)
    end = used(log_dir.create_log(ORDERS, TOPIC_ID, plain, build.NOW_MS)).end_offset
    log_dir.close()
    path = ROOT / str(ORDERS) / f"{0:020d}.log"
    files.flip(path, read_header(files.read_whole(path)).size_bytes + 16)  # the second's magic
    log = open_dir(files, plain).logs[ORDERS]
    with pytest.raises(CorruptBatch):
        log.read(Offset(2), end, 1 << 20, at_least_one=True)
    again = open_dir(files.kill(), plain).logs[ORDERS]
    assert again.corrupt == log.corrupt != []
    assert again.epoch_end(LeaderEpoch(1)) == (1, 16), "looked up in the log, before it is read"
    for at in range(log.corrupt[0].end_offset, end):
        assert again.read(Offset(at), end, 1 << 20, at_least_one=True) is not None


def test_epochs_that_are_newer_than_a_state_are_where_they_were() -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    log = log_dir.logs[ORDERS]
    log.flush()
    log.flushing.save()
    for epoch in (4, 4, 9, 9):
        build.append(log, 2, epoch=epoch)
    log.flush()
    for one in log_dir.begin_checkpoint():  # with the state that was saved before
        one.run()
    assert LogState.decode(log.flushing.state).end_offset < log.end_offset
    assert knowledge(open_dir(files.kill()).logs[ORDERS]) == knowledge(log)


def test_a_log_that_began_again_elsewhere_has_no_epochs_of_before() -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.checkpoint()
    log = log_dir.logs[ORDERS]
    log.restart_at(Offset(1000), build.NOW_MS)
    build.append(log, 2, epoch=9)
    log.flush()
    assert open_dir(files.kill()).logs[ORDERS].epochs.entries() == [(9, 1000)]


def test_a_state_of_what_was_cut_off_meanwhile_does_not_count() -> None:
    files = MemoryFiles()
    log = used(build.log(files, CONFIG))
    log.flushing.save()
    work = log.flushing.begin()
    assert work is not None
    log.truncate(Offset(6), build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    assert log.flushing.state == b""


def ended(*, is_clean: bool) -> tuple[MemoryFiles, dict[TopicPartition, tuple[object, ...]]]:
    """A disk after a clean stop, or as if that had not been one, and what its logs knew."""
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.close()
    if not is_clean:
        files.unlink(ROOT / ".clean-shutdown")
    return files, known(log_dir)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_without_its_states_a_directory_is_read_and_says_so_once(
    is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, before = ended(is_clean=is_clean)
    files.unlink(STATES)
    caplog.set_level(logging.WARNING, "ottla")
    for said in (1, 0):
        caplog.clear()
        files = files.kill()
        assert known(open_dir(files)) == before
        assert [line.getMessage() for line in caplog.records].count(IGNORED) == said


@pytest.mark.slow
@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_whatever_byte_of_the_states_is_wrong_logs_are_what_they_were(
    is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, before = ended(is_clean=is_clean)
    content = files.read_whole(STATES)
    rng = Random(7)
    for at in range(0, len(content), 3):
        after = files.kill()
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        after.create(STATES).append(changed)
        caplog.clear()
        assert known(open_dir(after)) == before
        assert IGNORED in [line.getMessage() for line in caplog.records]


def test_the_directory_of_an_older_ottla_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    """It has no states, and a file of epochs beside every log."""
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.close()
    files.unlink(STATES)
    for tp, log in log_dir.logs.items():
        files.create(ROOT / str(tp) / "leader-epoch-checkpoint").append(log.epochs.encode())
    caplog.set_level(logging.WARNING, "ottla")
    after = files.kill()
    assert known(open_dir(after)) == known(log_dir)
    assert not caplog.records
    for tp in log_dir.logs:
        names = [entry.name for entry in after.list(ROOT / str(tp))]
        assert "leader-epoch-checkpoint" not in names, "what it says would be wrong one day"
    assert decode_states(after.read_whole(STATES)).entries.keys() == log_dir.logs.keys()


def test_epochs_of_an_older_ottla_stay_where_they_are_while_the_disk_is_full() -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.close()
    files.unlink(STATES)
    path = ROOT / str(ORDERS) / "leader-epoch-checkpoint"
    files.create(path).append(log_dir.logs[ORDERS].epochs.encode())
    files.fail_next("append", errno.ENOSPC, suffix="log-states.tmp")
    open_dir(files)
    assert path.name in [entry.name for entry in files.list(path.parent)]


def test_a_power_cut_while_states_are_replaced_leaves_the_old_ones_or_the_new() -> None:
    files = MemoryFiles()
    log_dir = filled(files)
    log_dir.checkpoint()
    for log in log_dir.logs.values():
        build.append(log, 5, epoch=9)
        log.flush()
    before = known(log_dir)
    log_dir.save_logs(log_dir.logs.values(), None)
    states, *_ = log_dir.begin_checkpoint()
    states.run()
    for seed in range(30):
        assert known(open_dir(files.cut_power(Random(seed)))) == before
