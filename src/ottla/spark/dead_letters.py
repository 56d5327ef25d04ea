"""Dead letters: records whose values could not be parsed, written to their own topic.

A dead letter has the key, the value and the headers of the record, and more headers with its
topic, partition, offset and the reason. It is written before Spark gets the batch without it, so
none is lost; a task that runs again writes its dead letters again, with the same offsets.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

import pyarrow as pa

from ottla.client.client import Client
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.clock import SystemClock
from ottla.model import TimestampMs, TopicPartition
from ottla.records.batch import Record
from ottla.spark.blocking_client import BlockingClient
from ottla.spark.decode import LocatedRecords, headers_column, key_column, value_column
from ottla.spark.kernel import Field

TOPIC: Final = "ottla.dead-letter.topic"
PARTITION: Final = "ottla.dead-letter.partition"
OFFSET: Final = "ottla.dead-letter.offset"
TIMESTAMP: Final = "ottla.dead-letter.timestamp"
REASON: Final = "ottla.dead-letter.reason"
REASON_LENGTH_MAX: Final = 500
RECORDS_PER_WRITE_MAX: Final = 100  # in one request: each may have the largest record size


class DeadLetters:
    """Owns the dead letter producer of one task, opened for the first dead letter."""

    def __init__(self, blocking: BlockingClient, topic: str) -> None:
        self._blocking = blocking
        self._topic = topic
        self._producer: IdempotentProducer | None = None
        self._partitioner: Partitioner | None = None

    def write(self, bad: LocatedRecords, reasons: list[str]) -> None:
        """Write the records; returns when acks=all is reached."""
        self._blocking.submit(
            self._write(list(dead_letter_records(bad, reasons, _now_ms())))
        ).result()

    async def _write(self, records: list[Record]) -> None:
        client = self._blocking.client
        if self._producer is None or self._partitioner is None:
            self._partitioner = await _partitioner(client, self._topic)
            self._producer = await IdempotentProducer.open(client)
        for start in range(0, len(records), RECORDS_PER_WRITE_MAX):
            by_partition = dict[int, list[Record]]()
            for record in records[start : start + RECORDS_PER_WRITE_MAX]:
                by_partition.setdefault(self._partitioner.choose(record.key), []).append(record)
            for partition, some in by_partition.items():
                await self._producer.write(TopicPartition(self._topic, partition), some)
            self._partitioner.next_batch()


def dead_letter_records(
    bad: LocatedRecords, reasons: list[str], now_ms: TimestampMs
) -> Iterator[Record]:
    """The dead letters for records that could not be parsed."""
    columns: list[pa.Array] = [key_column(bad), value_column(bad), headers_column(bad)]
    offsets, timestamps = bad.table[Field.OFFSET], bad.table[Field.TIMESTAMP]
    rows = zip(*(column.to_pylist() for column in columns), offsets, timestamps, strict=True)
    for (key, value, headers, offset, timestamp), reason in zip(rows, reasons, strict=True):
        own = tuple((one["key"], one["value"]) for one in headers or ())
        origin = (
            (TOPIC, bad.tp.topic),
            (PARTITION, str(bad.tp.partition)),
            (OFFSET, str(offset)),
            (TIMESTAMP, str(timestamp)),
            (REASON, reason[:REASON_LENGTH_MAX]),
        )
        added = tuple((name, text.encode()) for name, text in origin)
        yield Record(timestamp_ms=now_ms, key=key, value=value, headers=(*own, *added))


async def _partitioner(client: Client, topic: str) -> Partitioner:
    view = await client.describe_or_create(topic)
    rng = Random()  # noqa: S311  # the partition of records without a key
    return Partitioner(len(view.topics[topic].partitions), rng)


def _now_ms() -> TimestampMs:
    return SystemClock().now_ms()
