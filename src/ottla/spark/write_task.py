"""Writes the rows of one Spark task: at least once, or in a transaction that stays open.

Exactly once: a task writes in one transaction and leaves it open. Its commit message names the
producer and the content; the driver decides about all tasks of a batch together (`batch_commit`).
Every attempt of a task has its own transactional id, so that attempts do not fence each other:
Spark chooses the attempt that counts.
"""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.client.transactional_producer import TransactionalProducer
from ottla.clock import SystemClock
from ottla.model import TopicPartition
from ottla.records.batch import Packed
from ottla.spark.batch_decisions import TaskResult, history_of, is_decided
from ottla.spark.blocking_client import BlockingClient, client_for
from ottla.spark.content_digest import Content, content_of
from ottla.spark.encode import Routes, encode, rows_by_topic
from ottla.spark.kernel import warn_if_missing
from ottla.spark.write_options import WriteOptions

_ABORT_TIMEOUT_S: Final = 5.0  # otherwise the driver aborts it, or it times out
_MANY_TOPICS: Final = "topics"  # the name of a sink whose rows go to several topics


@dataclass(frozen=True, slots=True)
class WrittenInTransaction(WriterCommitMessage):
    """Commit message of a task that has left its transaction open."""

    owner: str
    sink: str
    part: TaskResult


@dataclass(frozen=True, slots=True)
class WrittenAtLeastOnce(WriterCommitMessage):
    """Commit message of a task whose rows count already."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """An attempt of a task, as Spark numbers them."""

    owner: str  # a query, or a batch job
    task: int  # the partition of the data frame
    number: int  # of the attempt
    batch: int | None  # None for a batch job: it is never repeated

    def sink(self, topic: str | None) -> str:
        """The sink that decisions are about: an owner's writes to one topic, or to many."""
        return f"{self.owner}-{topic or _MANY_TOPICS}"

    def transactional_id(self, topic: str | None) -> str:
        """The transactional id; their number grows with tasks, not with batches."""
        return f"{self.sink(topic)}-{self.task}.{self.number}"


def write_at_least_once(
    batches: Iterator[pa.RecordBatch], options: WriteOptions
) -> WrittenAtLeastOnce:
    """Write every row with an idempotent producer: retried requests are not written twice."""
    warn_if_missing()
    filled = _non_empty(batches)
    if filled is None:
        return WrittenAtLeastOnce(0)
    blocking = client_for(options.brokers)
    producer = blocking.call(lambda client: IdempotentProducer.open(client, options.codec))
    writing = _TaskWriter(blocking, producer, options.topic)
    writing.write_all(filled)
    return WrittenAtLeastOnce(writing.rows)


def write_in_transaction(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, attempt: TaskAttempt
) -> WrittenInTransaction:
    """Write every row in one transaction and leave it open, unless the batch was decided before."""
    warn_if_missing()
    sink = attempt.sink(options.topic)
    filled = _non_empty(batches)
    if filled is None:
        return WrittenInTransaction(attempt.owner, sink, TaskResult(Content()))
    blocking = client_for(options.brokers)
    measured = _MeasuredBatches(filled, is_needed=attempt.batch is not None)
    # Before InitProducerId, which would abort a transaction that a decision has yet to commit.
    if attempt.batch is not None and _is_decided(blocking, attempt.owner, sink, attempt.batch):
        for _ in measured:
            pass
        return WrittenInTransaction(
            attempt.owner, sink, TaskResult(measured.content, found_decided=True)
        )
    producer = blocking.call(lambda client: _open(client, options, attempt))
    writing = _TaskWriter(blocking, producer, options.topic)
    try:
        writing.write_all(measured)
    except BaseException:
        writing.drain()
        with suppress(ClientError):
            blocking.submit(producer.abort(_ABORT_TIMEOUT_S)).result()
        raise
    return WrittenInTransaction(
        attempt.owner, sink, TaskResult(measured.content, producer.identity)
    )


class _MeasuredBatches:
    """Batches, with the content of those that were consumed; without a digest if not needed."""

    def __init__(self, batches: Iterator[pa.RecordBatch], *, is_needed: bool) -> None:
        self._batches = batches
        self._is_needed = is_needed
        self.content = Content()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.content += content_of(batch) if self._is_needed else Content(batch.num_rows)
            yield batch


def _is_decided(blocking: BlockingClient, owner: str, sink: str, batch: int) -> bool:
    values = blocking.submit(blocking.state.read(owner)).result()
    return is_decided(batch, history_of(sink, values))


async def _open(
    client: Client, options: WriteOptions, attempt: TaskAttempt
) -> TransactionalProducer:
    return await TransactionalProducer.open(
        client,
        attempt.transactional_id(options.topic),
        timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
    )


def _non_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches that have rows; None when there are no rows at all."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    return None if first is None else chain([first], filled)


class _Producer(Protocol):
    """A producer of packed records."""

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> object: ...


class _TaskWriter:
    """Owns the partitioners of a task's topics, and the request that is in flight.

    While one Arrow batch is in flight the next is encoded.
    """

    def __init__(self, blocking: BlockingClient, producer: _Producer, topic: str | None) -> None:
        self._blocking = blocking
        self._producer = producer
        self._topic = topic
        self._clock = SystemClock()
        self._partitioners: dict[str, Partitioner] = {}
        self._in_flight: Future[None] | None = None
        self.rows = 0

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write every row, in order within a partition; returns when all are acknowledged."""
        for batch in batches:
            routes = self._encode(batch)
            self._wait()
            self._in_flight = self._blocking.submit(self._send(routes))
            self.rows += batch.num_rows
        self._wait()

    def drain(self) -> None:
        """Wait until no request is in flight, whatever its result."""
        with suppress(ClientError):
            self._wait()

    def _wait(self) -> None:
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            in_flight.result()

    def _encode(self, batch: pa.RecordBatch) -> Routes:
        rows_of = rows_by_topic(batch, self._topic)
        for topic in rows_of.keys() - self._partitioners.keys():
            lookup = self._blocking.submit(_partitioner_for(self._blocking.client, topic))
            self._partitioners[topic] = lookup.result()
        routes = encode(batch, rows_of, self._partitioners, self._clock.now_ms())
        for partitioner in self._partitioners.values():
            partitioner.next_batch()
        return routes

    async def _send(self, routes: Routes) -> None:
        """Send all partitions concurrently; returns when all have ended."""
        outcomes = await asyncio.gather(
            *(self._send_in_order(tp, packs) for tp, packs in routes.items()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_in_order(self, tp: TopicPartition, packs: list[Packed]) -> None:
        for packed in packs:
            await self._producer.write_packed(tp, packed)


async def _partitioner_for(client: Client, topic: str) -> Partitioner:
    view = await client.describe_or_create(topic)
    rng = Random()  # noqa: S311  # the partition of records without a key
    return Partitioner(len(view.topics[topic].partitions), rng)
