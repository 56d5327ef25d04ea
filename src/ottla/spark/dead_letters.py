"""Records whose values could not be read are kept in a topic of their own.

A dead letter is the record as it was, key, value and headers, with headers behind those that say
where it lay and what was wrong. It is written before the batch that it is missing from goes to
Spark, so none is lost; a task that is run again writes its letters again, with the same place.
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
from ottla.spark.kernel_read import Field

TOPIC: Final = "ottla.dead-letter.topic"
PARTITION: Final = "ottla.dead-letter.partition"
OFFSET: Final = "ottla.dead-letter.offset"
TIMESTAMP: Final = "ottla.dead-letter.timestamp"
REASON: Final = "ottla.dead-letter.reason"
REASON_LENGTH_MAX: Final = 500
RECORDS_PER_WRITE_MAX: Final = 100  # in one request: each may be as large as records can be


class DeadLetters:
    """Owns the producer of one task, made when the first letter comes."""

    def __init__(self, blocking: BlockingClient, topic: str) -> None:
        self._blocking = blocking
        self._topic = topic
        self._producer: IdempotentProducer | None = None
        self._partitioner: Partitioner | None = None

    def write(self, bad: LocatedRecords, reasons: list[str]) -> None:
        """Returns when all of them are as safe as acks=all makes them."""
        self._blocking.submit(
            self._write(list(dead_letter_records(bad, reasons, _now_ms())))
        ).result()

    async def _write(self, letters: list[Record]) -> None:
        client = self._blocking.client
        if self._producer is None or self._partitioner is None:
            self._partitioner = await _partitioner(client, self._topic)
            self._producer = await IdempotentProducer.open(client)
        for start in range(0, len(letters), RECORDS_PER_WRITE_MAX):
            by_partition = dict[int, list[Record]]()
            for letter in letters[start : start + RECORDS_PER_WRITE_MAX]:
                by_partition.setdefault(self._partitioner.choose(letter.key), []).append(letter)
            for partition, some in by_partition.items():
                await self._producer.write(TopicPartition(self._topic, partition), some)
            self._partitioner.next_batch()


def dead_letter_records(
    bad: LocatedRecords, reasons: list[str], now_ms: TimestampMs
) -> Iterator[Record]:
    """What is written of records that could not be read."""
    columns: list[pa.Array] = [key_column(bad), value_column(bad), headers_column(bad)]
    offsets, timestamps = bad.table[Field.OFFSET], bad.table[Field.TIMESTAMP]
    rows = zip(*(column.to_pylist() for column in columns), offsets, timestamps, strict=True)
    for (key, value, headers, offset, timestamp), reason in zip(rows, reasons, strict=True):
        own = tuple((one["key"], one["value"]) for one in headers or ())
        place = (
            (TOPIC, bad.tp.topic),
            (PARTITION, str(bad.tp.partition)),
            (OFFSET, str(offset)),
            (TIMESTAMP, str(timestamp)),
            (REASON, reason[:REASON_LENGTH_MAX]),
        )
        said = tuple((name, text.encode()) for name, text in place)
        yield Record(timestamp_ms=now_ms, key=key, value=value, headers=(*own, *said))


async def _partitioner(client: Client, topic: str) -> Partitioner:
    view = await client.describe_or_create(topic)
    rng = Random()  # noqa: S311  # which partition records without a key go to
    return Partitioner(len(view.topics[topic].partitions), rng)


def _now_ms() -> TimestampMs:
    return SystemClock().now_ms()
