"""A led partition: what is promised to producers, what readers may see, and when they wake."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.config import Durability, TopicConfig
from ottla.errors import (
    ApiError,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from ottla.model import NO_TIMESTAMP, BrokerId, LeaderEpoch, Offset, ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import ACKS_ALL, ACKS_LEADER, Receipt
from ottla.storage.log import Log

FSYNC = TopicConfig(durability=Durability.FSYNC)
REPLICATED = TopicConfig(durability=Durability.REPLICATED)
HERE = BrokerId(0)


class LaterFlusher:
    """Flushes the logs that asked for it when the test says so."""

    def __init__(self) -> None:
        self.requested: list[Log] = []

    def request(self, log: Log) -> None:
        self.requested.append(log)


class Turns:
    """The loop's next turn, when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def run(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Led:
    """A partition with its log, and what a test drives it by."""

    def __init__(self, config: TopicConfig, *, replicas: int = 1, in_sync: int = 1) -> None:
        self.log = build.log(MemoryFiles(), config)
        self.flusher, self.turns = LaterFlusher(), Turns()
        self.replica_count = replicas
        self.isr = tuple(map(BrokerId, range(in_sync)))
        self.wanted_count = 0
        self.lead_again(build.EPOCH)

    def lead_again(self, epoch: LeaderEpoch) -> None:
        self.partition = led_partition(
            build.TP,
            self.log,
            broker_id=HERE,
            leader_epoch=epoch,
            replicas=tuple(map(BrokerId, range(self.replica_count))),
            isr=self.isr,
            flusher=self.flusher,
            soon=self.turns.callbacks.append,
            want_isr_change=self._want,
        )

    def _want(self) -> None:
        self.wanted_count += 1

    def append(self, count: int = 1, acks: int = ACKS_ALL) -> Offset:
        batch = memoryview(build.batch(count))
        return self.partition.append(batch, acks, build.NOW_MS).end_offset

    def flush(self) -> None:
        self.log.flush()
        self.partition.note_progress()


def test_a_replicated_batch_of_one_replica_is_committed_at_once() -> None:
    led = Led(REPLICATED)
    end = led.append(3)
    assert led.partition.high_watermark == end == 3
    assert led.partition.is_settled(end, ACKS_ALL)
    assert led.partition.is_settled(end, ACKS_LEADER)
    assert led.flusher.requested == []


@pytest.mark.parametrize("acks", [ACKS_ALL, ACKS_LEADER])
@pytest.mark.parametrize(("config", "is_settled"), [(REPLICATED, True), (FSYNC, False)])
def test_a_receipt_says_what_the_response_to_a_producer_says(
    config: TopicConfig, is_settled: bool, acks: int
) -> None:
    led = Led(config)
    led.append(2)
    led.flush()
    led.log.advance_start(Offset(1))
    receipt = led.partition.append(memoryview(build.batch(3)), acks, build.NOW_MS)
    assert receipt == Receipt(
        base_offset=Offset(2),
        end_offset=Offset(5),
        append_time_ms=NO_TIMESTAMP,
        log_start_offset=Offset(1),
        is_settled=is_settled,
    )


def test_an_fsync_batch_is_committed_when_it_is_on_disk() -> None:
    led = Led(FSYNC)
    end = led.append(3)
    settled: list[ApiError | None] = []
    for acks in (ACKS_ALL, ACKS_LEADER):
        assert not led.partition.is_settled(end, acks)
        led.partition.wait_settled(end, acks, settled.append)
    assert (led.partition.high_watermark, settled) == (0, [])
    assert led.flusher.requested == [led.log]
    led.flush()
    assert led.partition.high_watermark == end
    assert settled == [None, None]


def test_readers_see_nothing_above_the_high_watermark() -> None:
    led = Led(FSYNC)
    led.append()
    assert led.partition.readable_end(read_committed=False) == 0
    led.flush()
    led.append()
    assert led.partition.readable_end(read_committed=False) == 1
    assert led.log.end_offset == 2


def test_readers_of_committed_records_stop_before_an_open_transaction() -> None:
    led = Led(REPLICATED)
    led.append()
    batch = build.batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    led.partition.append(memoryview(batch), ACKS_ALL, build.NOW_MS)
    assert led.partition.readable_end(read_committed=True) == 1
    end = led.partition.append_marker(
        Marker(MarkerKind.COMMIT, 0), ProducerId(1), ProducerEpoch(0), build.NOW_MS
    )
    assert led.partition.readable_end(read_committed=True) == end == 3


def test_the_high_watermark_stays_when_durability_gets_stronger() -> None:
    led = Led(REPLICATED)
    led.append(2)
    led.partition.configure(FSYNC)
    assert led.partition.high_watermark == 2
    assert led.log.durable_offset == 0
    end = led.append()
    assert led.partition.high_watermark == 2
    led.flush()
    assert led.partition.high_watermark == end


def test_a_weaker_durability_settles_those_who_wait() -> None:
    led = Led(FSYNC)
    end = led.append()
    settled: list[ApiError | None] = []
    led.partition.wait_settled(end, ACKS_LEADER, settled.append)
    led.partition.wait_settled(end, ACKS_ALL, settled.append)
    led.partition.configure(REPLICATED)
    assert settled == [None, None]


def test_too_few_in_sync_replicas_refuse_acks_all_and_commit_nothing() -> None:
    led = Led(replace(REPLICATED, min_insync_replicas=2), replicas=2)
    with pytest.raises(NotEnoughReplicas):
        led.append()
    with pytest.raises(NotEnoughReplicas):
        led.partition.append_marker(
            Marker(MarkerKind.ABORT, 0), ProducerId(1), ProducerEpoch(0), build.NOW_MS
        )
    end = led.append(acks=ACKS_LEADER)
    assert led.partition.is_settled(end, ACKS_LEADER)
    assert led.partition.high_watermark == 0


def test_a_topic_with_fewer_replicas_than_the_minimum_asks_for_what_it_has() -> None:
    led = Led(replace(REPLICATED, min_insync_replicas=3))
    assert led.append() == led.partition.high_watermark == 1


def test_readers_wake_once_in_the_next_turn() -> None:
    led = Led(REPLICATED)
    woken: list[int] = []
    wake = lambda: woken.append(led.partition.high_watermark)  # noqa: E731
    led.partition.add_reader(wake)
    led.append()
    led.append()
    assert woken == []
    led.turns.run()
    assert woken == [2]
    led.partition.remove_reader(wake)
    led.append()
    led.turns.run()
    assert woken == [2]


def test_a_partition_that_is_given_up_fails_its_waiters_and_hears_nothing_more() -> None:
    led = Led(FSYNC)
    end = led.append()
    settled: list[ApiError | None] = []
    woken: list[bool] = []
    led.partition.wait_settled(end, ACKS_ALL, settled.append)
    led.partition.add_reader(lambda: woken.append(True))
    lost = NotLeader("moved")
    led.partition.give_up(lost)
    assert (settled, woken) == ([lost], [True])
    led.flush()
    led.partition.request_flush()
    assert led.partition.high_watermark == 0
    assert len(led.flusher.requested) == 1


def test_a_log_that_is_crowded_is_flushed() -> None:
    led = Led(REPLICATED)
    led.partition.request_flush()
    assert led.flusher.requested == [led.log]


def test_a_reader_with_another_epoch_is_refused() -> None:
    led = Led(REPLICATED)
    led.partition.check_epoch(-1)
    led.partition.check_epoch(build.EPOCH)
    with pytest.raises(FencedLeaderEpoch):
        led.partition.check_epoch(build.EPOCH - 1)
    with pytest.raises(UnknownLeaderEpoch):
        led.partition.check_epoch(build.EPOCH + 1)


@pytest.mark.parametrize("offset", [-1, 3])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    led = Led(REPLICATED)
    led.append(2)
    led.partition.check_offset(2)
    with pytest.raises(OffsetOutOfRange):
        led.partition.check_offset(offset)


def test_a_new_leader_begins_its_epoch_where_the_log_ends() -> None:
    led = Led(REPLICATED)
    led.append(2)
    led.lead_again(LeaderEpoch(build.EPOCH + 4))
    assert led.log.epochs.entries() == [(build.EPOCH, 0), (build.EPOCH + 4, 2)]


def test_an_image_of_another_leader_or_epoch_is_our_mistake() -> None:
    led = Led(REPLICATED)
    image = led.partition.image
    with pytest.raises(AssertionError, match="another epoch"):
        led.partition.note_image(replace(image, leader_epoch=LeaderEpoch(build.EPOCH + 2)), 0.0)
    with pytest.raises(AssertionError, match="another epoch"):
        led.partition.note_image(replace(image, leader_epoch=LeaderEpoch(build.EPOCH - 1)), 0.0)
    with pytest.raises(AssertionError, match="is led by"):
        led.partition.note_image(replace(image, leader=BrokerId(7)), 0.0)
