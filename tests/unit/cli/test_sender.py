"""Which lines are written and which are not, whatever the broker does."""

import asyncio
from random import Random

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.cli.outgoing import (
    BATCH_BYTES_MAX,
    NumberedRecord,
    RecordLines,
    by_partition,
    split,
)
from ottla.cli.sender import Sender, format_ranges
from ottla.client.client import Client
from ottla.client.partitioner import Partitioner, partition_of_key
from ottla.client.partitions import Acks
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.batch import Record, records


class Storing:
    """A produce handler that keeps what it gets, and refuses batches with a certain value."""

    def __init__(self, *, batch_bytes_max: int = 10**9, poison: bytes = b"poison") -> None:
        self.batch_bytes_max = batch_bytes_max
        self.poison = poison
        self.written: dict[int, list[bytes | None]] = {}
        self.batch_count = 0

    def __call__(self, request: ProduceRequest) -> ProduceResponse | None:
        ((data,),) = [topic.partition_data for topic in request.topic_data]
        values = [record.value for record in records(bytes(data.records or b""))]
        stored = self.written.setdefault(data.index, [])
        code, base_offset = ErrorCode.NONE, len(stored)
        if len(data.records or b"") > self.batch_bytes_max:
            code = ErrorCode.MESSAGE_TOO_LARGE
        elif self.poison in values:
            code = ErrorCode.INVALID_RECORD
        else:
            stored += values
            self.batch_count += 1
        if request.acks == 0:
            return None
        result = PartitionProduceResponse(
            index=data.index, error_code=code, base_offset=base_offset
        )
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=[result])]
        )


def numbered(*values: bytes, key: bytes | None = None) -> list[tuple[NumberedRecord, int | None]]:
    return [
        (NumberedRecord(line, Record(timestamp_ms=TimestampMs(0), key=key, value=value)), None)
        for line, value in enumerate(values, 1)
    ]


def send(
    storing: Storing,
    numbered: list[tuple[NumberedRecord, int | None]],
    *,
    partition_count: int = 1,
    acks: Acks = Acks.ALL,
) -> Sender:
    async def run() -> Sender:
        topic = OneTopic("t", partition_count)
        broker = AnsweringBroker({ApiKey.METADATA: topic, ApiKey.PRODUCE: storing})
        async with broker, asyncio.timeout(10):
            topic.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=1) as client:
                sender = Sender(
                    client=client,
                    topic="t",
                    partitioner=Partitioner(partition_count, Random(1)),
                    acks=acks,
                )
                await sender.send(by_partition(numbered, sender.partitioner))
                return sender

    return asyncio.run(run())


def test_records_are_written_in_their_order() -> None:
    storing = Storing()
    sender = send(storing, numbered(b"a", b"b", b"c"))
    assert storing.written == {0: [b"a", b"b", b"c"]}
    assert storing.batch_count == 1
    assert sender.written_count == 3
    assert (sender.counts[0].first_offset, sender.counts[0].last_offset) == (0, 2)
    assert not sender.losses


def test_keys_decide_where_records_go_unless_the_line_does() -> None:
    storing = Storing()
    written = numbered(b"by key", key=b"k")
    written.append((written[0][0], 0))
    send(storing, written, partition_count=3)
    assert partition_of_key(b"k", 3) == 2
    assert storing.written == {2: [b"by key"], 0: [b"by key"]}


def test_a_batch_that_is_too_large_is_sent_in_halves() -> None:
    storing = Storing(batch_bytes_max=200)
    values = [b"%02d" % n * 20 for n in range(10)]
    sender = send(storing, numbered(*values))
    assert storing.written == {0: values}
    assert storing.batch_count > 2
    assert sender.written_count == 10


def test_one_record_that_is_too_large_is_named_and_the_rest_is_not_sent() -> None:
    storing = Storing(batch_bytes_max=200)
    sender = send(storing, numbered(b"small", b"x" * 500, b"behind"))
    assert storing.written == {0: [b"small"]}
    assert sender.written_count == 1
    assert [loss.lines for loss in sender.losses] == [(2,), (3,)]
    assert "line 2 was not written" in sender.losses[0].explain()
    assert "max.message.bytes" in sender.losses[0].explain()
    assert "an earlier line failed" in sender.losses[1].explain()


def test_other_partitions_are_not_held_up_by_a_refusal() -> None:
    storing = Storing()
    good, bad = numbered(b"good")[0][0], numbered(b"poison")[0][0]
    sender = send(storing, [(bad, 0), (good, 1)], partition_count=2)
    assert storing.written[1] == [b"good"]
    assert [loss.lines for loss in sender.losses] == [(1,)]


def test_without_acks_everything_sent_has_arrived() -> None:
    storing = Storing()
    sender = send(storing, numbered(b"a", b"b"), acks=Acks.NONE)
    assert storing.written == {0: [b"a", b"b"]}
    assert sender.written_count == 2
    assert sender.counts[0].first_offset is None


def test_an_unanswered_batch_is_neither_written_nor_lost_for_certain() -> None:
    async def run() -> Sender:
        topic = OneTopic("t")
        broker = AnsweringBroker({ApiKey.METADATA: topic})
        broker.scripts[ApiKey.PRODUCE] = lambda request: broker.hang_up()
        async with broker, asyncio.timeout(10):
            topic.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=1) as client:
                sender = Sender(client=client, topic="t", partitioner=Partitioner(1, Random(1)))
                await sender.send(by_partition(numbered(b"a", b"b"), sender.partitioner))
                return sender

    sender = asyncio.run(run())
    assert sender.written_count == 0
    assert sender.losses[0].explain().startswith("it is not known whether line 1-2 was written")


def test_batches_are_full_but_not_too_full() -> None:
    value = b"x" * (BATCH_BYTES_MAX // 3)
    written = [one for one, _ in numbered(value, value, value, b"y" * 2 * BATCH_BYTES_MAX)]
    assert [batch.lines() for batch in split(RecordLines(written))] == [[1, 2], [3], [4]]


@pytest.mark.parametrize(
    ("lines", "text"),
    [([4], "4"), ([1, 2, 3], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9"), ([], "")],
)
def test_line_numbers_are_told_in_few_words(lines: list[int], text: str) -> None:
    assert format_ranges(lines) == text


def test_many_line_numbers_are_cut_short() -> None:
    assert format_ranges(range(1, 100, 2)).endswith("37, 39, and 30 more")
