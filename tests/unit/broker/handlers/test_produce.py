"""Produce: a request whose batches wait for the disk gets one response, in time or too late."""

from types import SimpleNamespace
from typing import cast

import pytest

from fakes import build
from fakes.led import led_partition
from fakes.memory_files import MemoryFiles
from ottla.broker.handlers.produce import Produce
from ottla.broker.pending import Pending
from ottla.broker.services import Services
from ottla.cluster.image import ClusterImage
from ottla.config import TopicConfig
from ottla.errors import ErrorCode, NotLeader
from ottla.model import BrokerId, TimestampMs, TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.storage.log import Log

VERSION = 9
HEADER_BYTES = 9  # length, correlation id, no tagged fields
TIMEOUT_MS = 5000


class HandClock:
    """Time that passes when the test says so."""

    now_s = 100.0

    def now_ms(self) -> TimestampMs:
        return build.NOW_MS

    def monotonic_s(self) -> float:
        return self.now_s


class Leaders:
    """Partitions of a topic that promises the disk, which no thread brings them to."""

    def __init__(self, count: int) -> None:
        self.partitions = [
            led_partition(
                TopicPartition("t", index),
                build.log(MemoryFiles(), TopicConfig()),
                broker_id=BrokerId(0),
                leader_epoch=build.EPOCH,
                replicas=(BrokerId(0),),
                isr=frozenset({BrokerId(0)}),
                flusher=self,
                soon=lambda callback: callback(),
            )
            for index in range(count)
        ]

    def request(self, log: Log) -> None:
        return

    @property
    def writable(self) -> "Leaders":
        return self

    def locate(self, _key: object, index: int) -> LeaderPartition:
        return self.partitions[index]

    def flush(self, index: int) -> None:
        self.partitions[index].log.flush()
        self.partitions[index].note_progress()


class Scene:
    def __init__(self, partitions: int) -> None:
        self.clock, self.leaders = HandClock(), Leaders(partitions)
        state = SimpleNamespace(image=ClusterImage())
        services = SimpleNamespace(replicas=self.leaders, clock=self.clock, state=state)
        self.produce = Produce(cast("Services", services))
        self.completions = 0

    def send(self, *indexes: int) -> Pending:
        batches = [
            PartitionProduceData(index=index, records=bytes(build.batch())) for index in indexes
        ]
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name="t", partition_data=batches)],
        )
        frame = memoryview(bytearray(encode(request, VERSION)))
        response = self.produce.take(frame, 0, VERSION, 7)
        assert isinstance(response, Pending)
        response.on_complete(self._note_complete)
        return response

    def _note_complete(self) -> None:
        self.completions += 1


def results(pending: Pending) -> list[PartitionProduceResponse]:
    assert isinstance(pending.parts, bytes)
    response = decode(ProduceResponse, VERSION, pending.parts, HEADER_BYTES)
    return response.responses[0].partition_responses


def codes(pending: Pending) -> list[int]:
    return [result.error_code for result in results(pending)]


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
def test_a_response_is_complete_when_all_its_batches_are_on_disk(indexes: tuple[int, ...]) -> None:
    scene = Scene(2)
    pending = scene.send(*indexes)
    for index in indexes:
        assert pending.parts is None
        assert scene.produce.waiting_count == 1
        scene.leaders.flush(index)
    assert codes(pending) == [0] * len(indexes)
    assert [result.base_offset for result in results(pending)] == [0] * len(indexes)
    assert (scene.completions, scene.produce.waiting_count) == (1, 0)


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
def test_a_request_that_timed_out_has_its_response_and_gets_no_other(
    indexes: tuple[int, ...],
) -> None:
    scene = Scene(2)
    pending = scene.send(*indexes)
    scene.clock.now_s += TIMEOUT_MS / 1000 - 0.1
    scene.produce.expire()
    assert pending.parts is None
    scene.clock.now_s += 0.1
    scene.produce.expire()
    assert codes(pending) == [ErrorCode.REQUEST_TIMED_OUT] * len(indexes)
    for index in indexes:
        scene.leaders.flush(index)
    assert codes(pending) == [ErrorCode.REQUEST_TIMED_OUT] * len(indexes)
    assert (scene.completions, scene.produce.waiting_count) == (1, 0)


def test_only_the_batches_that_are_late_are_refused() -> None:
    scene = Scene(2)
    pending = scene.send(0, 1)
    scene.leaders.flush(1)
    scene.clock.now_s += TIMEOUT_MS / 1000
    scene.produce.expire()
    assert codes(pending) == [ErrorCode.REQUEST_TIMED_OUT, 0]


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
def test_a_partition_that_is_lost_refuses_the_batches_that_wait_for_it(
    indexes: tuple[int, ...],
) -> None:
    scene = Scene(2)
    pending = scene.send(*indexes)
    for index in indexes[1:]:
        scene.leaders.flush(index)
    scene.leaders.partitions[0].give_up(NotLeader("moved"))
    assert codes(pending) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, *[0] * len(indexes[1:])]
    assert scene.produce.waiting_count == 0
