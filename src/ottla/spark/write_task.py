"""What one Spark task does to write its rows: at least once, or in a transaction that stays open.

Exactly once: a task writes in one transaction and leaves it open. Its message to the driver says
whose transaction it is and what is in it; the driver decides about all tasks of a batch together
(`committing`). Every attempt of a task has a transactional id of its own, so that attempts do not
fence each other: which of them counts is for Spark to say.
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

_ABORT_TIMEOUT_S: Final = 5.0  # what is not aborted here is aborted by the driver, or times out
_MANY_TOPICS: Final = "topics"  # in place of the one topic that all rows go to


@dataclass(frozen=True, slots=True)
class WrittenInTransaction(WriterCommitMessage):
    """What a task has written, for which sink of which owner."""

    owner: str
    sink: str
    part: TaskResult


@dataclass(frozen=True, slots=True)
class WrittenAtLeastOnce(WriterCommitMessage):
    """What a task has written for good."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One try of one task."""

    owner: str  # a query, or a batch job
    task: int  # the partition of the data frame
    number: int  # of the try
    batch: int | None  # None for a batch job: it is never repeated

    def sink(self, topic: str | None) -> str:
        """What decisions are about: all that an owner writes to a topic, or to many."""
        return f"{self.owner}-{topic or _MANY_TOPICS}"

    def transactional_id(self, topic: str | None) -> str:
        """Who writes. The number of these is limited by the number of tasks, not of batches."""
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
    # Asked before the id is taken: that would abort what a decision may still have to commit.
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
    """Passes batches on and adds up what is in them; only the rows where no digest is needed."""

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
    """Who takes packed records."""

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> None: ...


class _TaskWriter:
    """Owns what a task knows of its topics, and the rows that are on their way.

    While one Arrow batch is on its way the next is made into records.
    """

    def __init__(self, blocking: BlockingClient, producer: _Producer, topic: str | None) -> None:
        self._blocking = blocking
        self._producer = producer
        self._topic = topic
        self._clock = SystemClock()
        self._partitioners: dict[str, Partitioner] = {}
        self._under_way: Future[None] | None = None
        self.rows = 0

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write every row, each partition's in their order; returns when all are safe."""
        for batch in batches:
            routes = self._encode(batch)
            self._wait()
            self._under_way = self._blocking.submit(self._send(routes))
            self.rows += batch.num_rows
        self._wait()

    def drain(self) -> None:
        """Return when nothing is on its way any more, whatever became of it."""
        with suppress(ClientError):
            self._wait()

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _encode(self, batch: pa.RecordBatch) -> Routes:
        rows_of = rows_by_topic(batch, self._topic)
        for topic in rows_of.keys() - self._partitioners.keys():
            learning = self._blocking.submit(_partitioner_for(self._blocking.client, topic))
            self._partitioners[topic] = learning.result()
        routes = encode(batch, rows_of, self._partitioners, self._clock.now_ms())
        for partitioner in self._partitioners.values():
            partitioner.next_batch()
        return routes

    async def _send(self, routes: Routes) -> None:
        """Partitions at the same time; all have ended when this returns."""
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
    rng = Random()  # noqa: S311  # which partition records without a key go to
    return Partitioner(len(view.topics[topic].partitions), rng)
