"""Dead letters: records whose values could not be parsed, written to their own topic.

A dead letter has the key, the value and the headers of the record, and more headers with its
topic, partition, offset and the reason. It is written before Spark gets the batch without it, so
none is lost; a task that runs again writes its dead letters again, with the same offsets.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import pyarrow as pa

from ottla.client.client import Client
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.records.batch import Record
from ottla.spark.blocking_client import BlockingClient, client_for
from ottla.spark.broker_options import BrokerOptions
from ottla.spark.decode import LocatedRecords, headers_column, key_column, value_column
from ottla.spark.kernel import Field
from ottla.spark.option_reader import OptionRefused

CORRUPT: Final = "_corrupt"  # the column with the bytes of a value that could not be parsed
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

    def write(self, records: Iterable[Record]) -> None:
        """Write the records; returns when acks=all is reached."""
        self._blocking.submit(self._write(list(records))).result()

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


def dead_letters_of(bad: LocatedRecords, reasons: list[str]) -> Iterator[Record]:
    """The dead letters for records that a reader could not parse."""
    columns: list[pa.Array] = [key_column(bad), value_column(bad), headers_column(bad)]
    offsets, timestamps = bad.table[Field.OFFSET], bad.table[Field.TIMESTAMP]
    rows = zip(*(column.to_pylist() for column in columns), offsets, timestamps, strict=True)
    now_ms = SystemClock().now_ms()
    for (key, value, headers, offset, timestamp), reason in zip(rows, reasons, strict=True):
        origin = (bad.tp.topic, bad.tp.partition, offset, timestamp, reason)
        yield Record(
            timestamp_ms=now_ms, key=key, value=value, headers=_headers_of(headers, origin)
        )


def write_dead_letters(rows: pa.Array, topic: str, reason: str, brokers: BrokerOptions) -> pa.Array:
    """True for each null, after all other rows are in the dead letter topic.

    A row is a struct of `CORRUPT`, the bytes of the value, and of `ORIGIN_COLUMNS`.
    """
    if rows.null_count < len(rows):
        bad = rows.drop_null().to_pylist()
        records = [_dead_letter_of(row, topic, reason) for row in bad]
        DeadLetters(client_for(brokers), topic).write(records)
    return rows.is_null()


def _dead_letter_of(row: dict[str, Any], topic: str, reason: str) -> Record:
    if row["topic"] == topic:
        raise OptionRefused(f"deadLetterTopic={topic} is one of the topics that are read")
    written, key = row.get("timestamp"), row.get("key")
    written_ms = "" if written is None else round(written.timestamp() * 1000)
    origin = (row["topic"], row["partition"], row["offset"], written_ms, reason)
    return Record(
        timestamp_ms=SystemClock().now_ms(),
        key=key.encode() if isinstance(key, str) else key,
        value=row[CORRUPT],
        headers=_headers_of(row.get("headers"), origin),
    )


ORIGIN_COLUMNS: Final = ("key", "headers", "topic", "partition", "offset", "timestamp")
_ORIGIN: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP, REASON)
_OwnHeaders = list[dict[str, Any]] | None


def _headers_of(
    own: _OwnHeaders, origin: tuple[object, ...]
) -> tuple[tuple[str, bytes | None], ...]:
    kept = tuple((one["key"], one["value"]) for one in own or ())
    added = zip(_ORIGIN, origin, strict=True)
    return (*kept, *((name, str(what)[:REASON_LENGTH_MAX].encode()) for name, what in added))


async def _partitioner(client: Client, topic: str) -> Partitioner:
    view = await client.describe_or_create(topic)
    rng = Random()  # noqa: S311  # the partition of records without a key
    return Partitioner(len(view.topics[topic].partitions), rng)
