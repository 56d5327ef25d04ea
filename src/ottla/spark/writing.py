"""What one Spark task does to write its rows: at least once, or exactly once.

Exactly once: a task writes in one transaction, under an id that says which work it does, and notes
in the same transaction that this work is done. Whoever comes later to do it again, because a task
was tried again or a query was restarted, takes the id first, which ends whatever an earlier one
has left open, and then looks whether the work has been done.
"""

import asyncio
from collections.abc import Iterator
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
from ottla.client.groups import stable_offsets
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.client.transactional_producer import TransactionalProducer
from ottla.clock import SystemClock
from ottla.model import Offset, TopicPartition
from ottla.records.batch import Packed
from ottla.spark.encode import Routes, encode, rows_by_topic
from ottla.spark.link import Link, link_to
from ottla.spark.options import WriteOptions

_ABORT_PATIENCE_S: Final = 5.0  # what is not aborted is ended by the next try, or by its timeout
_MANY_TOPICS: Final = "topics"  # in place of the one topic that all rows go to


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has written, or found written by an earlier try."""

    rows: int
    is_repetition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a task has to write, however often that is tried: the same work has the same rows."""

    owner: str  # a query, or a batch job
    partition: int  # of the data frame
    number: int  # of the micro-batch

    def transactional_id(self, topic: str | None) -> str:
        """Who writes it: one producer at a time."""
        return f"{self.owner}-{topic or _MANY_TOPICS}-{self.partition}"

    def marker_group(self, topic: str | None) -> str:
        """Where it is noted how far the work is done: the offset of a group that nobody is in.

        Each partition has a group to itself. An offset belongs to a partition of a topic, and
        brokers take it only for one that exists, so that partitions of data frames cannot be
        told apart by it.
        """
        return f"__ottla_sink-{self.transactional_id(topic)}"


def write_at_least_once(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Written:
    """Write every row; what is sent again on its way is not written again."""
    filled = _filled(batches)
    if filled is None:
        return Written(0)
    link = link_to(options.brokers)
    producer = link.ask(lambda client: IdempotentProducer.open(client, options.codec))
    writing = _Writing(link, producer, options.topic)
    writing.write_all(filled)
    return Written(writing.rows)


def write_exactly_once(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, work: Work
) -> Written:
    """Write every row in one transaction, unless this work has been done before."""
    filled = _filled(batches)
    if filled is None:
        return Written(0)
    link = link_to(options.brokers)
    group = work.marker_group(options.topic)
    producer = link.ask(lambda client: _open(client, options, work))
    # Asked after the id was taken: earlier tries have ended by then, and none can commit any more.
    if link.ask(lambda client: _last_done(client, group)) >= work.number:
        return Written(sum(batch.num_rows for batch in filled), is_repetition=True)
    writing = _Writing(link, producer, options.topic)
    try:
        writing.write_all(filled)
        marker = {writing.some_partition: Offset(work.number)}
        link.start(producer.commit_offsets(group, marker)).result()
        link.start(producer.commit()).result()
    except BaseException:
        writing.settle()
        with suppress(ClientError):
            link.start(producer.abort(_ABORT_PATIENCE_S)).result()
        raise
    return Written(writing.rows)


def wait_readable(options: WriteOptions, work: Work) -> None:
    """Return when readers of committed records see what was written.

    A commit is answered before every partition has heard of it. Who takes the id has to wait
    until all have.
    """
    link_to(options.brokers).ask(lambda client: _open(client, options, work))


async def _open(client: Client, options: WriteOptions, work: Work) -> TransactionalProducer:
    return await TransactionalProducer.open(
        client,
        work.transactional_id(options.topic),
        timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
    )


async def _last_done(client: Client, group: str) -> int:
    """The last micro-batch whose marker counts; -1 when there is none."""
    return max((await stable_offsets(client, group)).values(), default=-1)


def _filled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches that have rows; None when there are no rows at all."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    return None if first is None else chain([first], filled)


class _Producer(Protocol):
    """Who takes packed records."""

    async def write_packed(self, tp: TopicPartition, packed: Packed) -> None: ...


class _Writing:
    """Owns what a task knows of its topics, and the rows that are on their way.

    While one Arrow batch is on its way the next is made into records.
    """

    def __init__(self, link: Link, producer: _Producer, topic: str | None) -> None:
        self._link = link
        self._producer = producer
        self._topic = topic
        self._clock = SystemClock()
        self._partitioners: dict[str, Partitioner] = {}
        self._under_way: Future[None] | None = None
        self._written: TopicPartition | None = None
        self.rows = 0

    @property
    def some_partition(self) -> TopicPartition:
        """One that rows were written to."""
        assert self._written is not None, "something was written"
        return self._written

    def write_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write every row, each partition's in their order; returns when all are safe."""
        for batch in batches:
            routes = self._encode(batch)
            self._wait()
            self._under_way = self._link.start(self._send(routes))
            self._written = next(iter(routes))
            self.rows += batch.num_rows
        self._wait()

    def settle(self) -> None:
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
            learning = self._link.start(_learn(self._link.client, topic))
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


async def _learn(client: Client, topic: str) -> Partitioner:
    view = await client.describe_or_create(topic)
    chance = Random()  # noqa: S311  # which partition records without a key go to
    return Partitioner(len(view.topics[topic].partitions), chance)
