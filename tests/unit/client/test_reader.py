"""Reading partitions record by record."""

import asyncio

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.client.client import Client
from ottla.client.errors import Refused, Unreadable
from ottla.client.partitions import DEFAULT_LIMITS, Isolation
from ottla.client.reader import FIRST_FETCH_BYTES, ReadRange, read
from ottla.errors import ErrorCode
from ottla.model import LeaderEpoch, Offset, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from ottla.records.batch import Record, build_batch, read_header, stamp


class Partitions:
    """A fetch handler over batches in memory; it answers one batch per partition at a time."""

    def __init__(self, *logs: list[bytes]) -> None:
        self.logs = logs
        self.asked: list[FetchRequest] = []
        self.errors: list[ErrorCode] = []

    def __call__(self, request: FetchRequest) -> FetchResponse:
        self.asked.append(request)
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        (topic,) = request.topics
        answers = [self._answer(partition, error) for partition in topic.partitions]
        return FetchResponse(responses=[FetchTopicResponse(topic=topic.topic, partitions=answers)])

    def _answer(self, wanted: FetchPartition, error: ErrorCode) -> FetchPartitionResponse:
        found = b""
        if error is ErrorCode.NONE:
            for batch in self.logs[wanted.partition]:
                if read_header(batch).last_offset >= wanted.fetch_offset:
                    found = batch
                    break
        return FetchPartitionResponse(
            partition_index=wanted.partition,
            error_code=error,
            records=found,
            log_start_offset=3,
            high_watermark=9,
        )


def batch(base_offset: int, *values: bytes) -> bytes:
    built = build_batch([Record(timestamp_ms=TimestampMs(0), value=value) for value in values])
    stamp(built, Offset(base_offset), LeaderEpoch(0))
    return bytes(built)


LOG = [batch(0, b"a", b"b", b"c"), batch(3, b"d"), batch(10, b"e", b"f")]


def read_all(
    partitions: Partitions,
    ranges: dict[int, ReadRange],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[tuple[int, int, bytes | None]]:
    async def run() -> list[tuple[int, int, bytes | None]]:
        topic = OneTopic("t", len(partitions.logs))
        broker = AnsweringBroker({ApiKey.METADATA: topic, ApiKey.FETCH: partitions})
        async with broker, asyncio.timeout(10):
            topic.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=1) as client:
                wanted = {TopicPartition("t", index): part for index, part in ranges.items()}
                return [
                    (batch.tp.partition, record.offset, record.value)
                    async for batches in read(client, wanted, isolation=isolation)
                    for batch in batches
                    for record in batch.records()
                ]

    return asyncio.run(run())


def test_a_range_is_read_from_its_start_to_before_its_end() -> None:
    found = read_all(Partitions(LOG), {0: ReadRange(Offset(1), Offset(11))})
    assert found == [(0, 1, b"b"), (0, 2, b"c"), (0, 3, b"d"), (0, 10, b"e")]


def test_gaps_between_batches_are_stepped_over() -> None:
    found = read_all(Partitions(LOG), {0: ReadRange(Offset(4), Offset(12))})
    assert found == [(0, 10, b"e"), (0, 11, b"f")]


@pytest.mark.parametrize("part", [ReadRange(Offset(5), Offset(5)), ReadRange(Offset(9), Offset(5))])
def test_an_empty_range_asks_nobody(part: ReadRange) -> None:
    partitions = Partitions(LOG)
    assert read_all(partitions, {0: part}) == []
    assert partitions.asked == []


def test_partitions_are_read_together_and_each_in_its_order() -> None:
    partitions = Partitions(LOG, [batch(0, b"x"), batch(1, b"y")])
    found = read_all(
        partitions, {0: ReadRange(Offset(0), Offset(4)), 1: ReadRange(Offset(0), Offset(2))}
    )
    assert [value for index, _, value in found if index == 0] == [b"a", b"b", b"c", b"d"]
    assert [value for index, _, value in found if index == 1] == [b"x", b"y"]
    assert len(partitions.asked[0].topics[0].partitions) == 2
    assert len(partitions.asked) == 2


def test_a_change_of_leader_is_followed() -> None:
    partitions = Partitions(LOG)
    partitions.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    found = read_all(partitions, {0: ReadRange(Offset(3), Offset(4))})
    assert found == [(0, 3, b"d")]


def test_an_offset_that_is_gone_is_explained() -> None:
    partitions = Partitions(LOG)
    partitions.errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    with pytest.raises(Refused, match="offset 0 is out of range; the log begins at 3 and"):
        read_all(partitions, {0: ReadRange(Offset(0), Offset(4))})


def test_damaged_batches_are_not_passed_on() -> None:
    damaged = bytearray(LOG[0])
    damaged[-1] ^= 1
    with pytest.raises(Unreadable, match="t-0 from offset 0 on: the batch's CRC"):
        read_all(Partitions([bytes(damaged)]), {0: ReadRange(Offset(0), Offset(3))})


def test_isolation_is_asked_of_the_broker() -> None:
    partitions = Partitions(LOG)
    read_all(partitions, {0: ReadRange(Offset(0), Offset(1))}, Isolation.READ_COMMITTED)
    assert partitions.asked[0].isolation_level == 1


def test_the_first_fetch_is_small_so_that_its_records_come_at_once() -> None:
    partitions = Partitions([batch(0, b"a"), batch(1, b"b"), batch(2, b"c")])
    read_all(partitions, {0: ReadRange(Offset(0), Offset(3))})
    sizes = [asked.topics[0].partitions[0].partition_max_bytes for asked in partitions.asked]
    assert sizes == [FIRST_FETCH_BYTES, *[DEFAULT_LIMITS.partition_bytes_max] * 2]
