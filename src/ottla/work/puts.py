"""Sending messages: those that wait for a partition go together, in one batch."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Final, NamedTuple

from ottla.client.client import Client
from ottla.client.configs import settings_of, topic_resource
from ottla.client.errors import Refused
from ottla.client.partitioner import Partitioner
from ottla.client.producer import IdempotentProducer
from ottla.clock import Clock
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition
from ottla.records.batch import Record
from ottla.work.errors import DelayNotEnabled

DELAY: Final = "ottla.delay-ms"
DELIVER_AT: Final = "ottla.deliver-at"
TTL: Final = "ottla.ttl-ms"
DELAY_SETTING: Final = "delay.enable"
_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 512 * 1024
_METADATA_S: Final = 60.0  # after which it is looked whether there are more partitions

Value = bytes | str | None
Headers = Mapping[str, Value] | Sequence[tuple[str, Value]]


class Receipt(NamedTuple):
    """Where a message is; the offset is the ticket of one that is delayed.

    The offset is None if the message was written and the broker no longer knows where: a response
    was lost, and much was written before it was asked again.
    """

    topic: str
    partition: int
    offset: int | None


class _Waiting(NamedTuple):
    record: Record
    size_bytes: int
    receipt: "asyncio.Future[Receipt]"


class Puts:
    """The producer of a queue."""

    def __init__(self, client: Client, topic: str, clock: Clock, rng: Random) -> None:
        self._client = client
        self._topic = topic
        self._clock = clock
        self._rng = rng
        self._partitioner: Partitioner | None = None
        self._described_s = 0.0
        self._producer: IdempotentProducer | None = None
        self._opening = asyncio.Lock()
        self._can_delay = False
        self._waiting: dict[TopicPartition, list[_Waiting]] = {}
        self._senders: dict[TopicPartition, asyncio.Task[None]] = {}

    async def put(
        self,
        value: Value,
        *,
        key: Value,
        headers: Headers,
        delay_s: float | None,
        at: datetime | None,
        ttl_s: float | None,
    ) -> Receipt:
        own = _timing(delay_s, at, ttl_s)
        given = _encoded(headers)
        for name, _ in given:
            if name in {DELAY, DELIVER_AT, TTL}:
                raise ValueError(f"header {name}: say delay=, at= or ttl= instead")
        if delay_s is not None or at is not None:
            await self._check_delay()
        record = Record(
            timestamp_ms=self._clock.now_ms(),
            key=_bytes(key),
            value=_bytes(value),
            headers=(*given, *own),
        )
        partitioner = await self._partitions()
        tp = TopicPartition(self._topic, partitioner.choose(record.key))
        if record.key is None:
            partitioner.next_batch()
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        size_bytes = len(record.key or b"") + len(record.value or b"")
        self._waiting.setdefault(tp, []).append(_Waiting(record, size_bytes, receipt))
        if tp not in self._senders:
            self._senders[tp] = asyncio.create_task(self._send(tp))
        return await receipt

    async def close(self) -> None:
        """Return when what is under way is written, or has failed."""
        if self._senders:
            await asyncio.wait(self._senders.values())

    async def _partitions(self) -> Partitioner:
        now_s = asyncio.get_running_loop().time()
        if self._partitioner is None or now_s - self._described_s > _METADATA_S:
            view = await self._client.retry(lambda: self._client.describe([self._topic]))
            count = len(view.topics[self._topic].partitions)
            self._described_s = now_s
            if self._partitioner is None or self._partitioner.partition_count != count:
                self._partitioner = Partitioner(count, self._rng)
        return self._partitioner

    async def _check_delay(self) -> None:
        """Raise unless the topic holds records back: elsewhere they would be delivered at once."""
        if self._can_delay:
            return
        resource = topic_resource(self._topic)
        found = await self._client.retry(lambda: settings_of(self._client, [resource]))
        value = next((s.value for s in found[resource] if s.name == DELAY_SETTING), None)
        if value is None:
            raise DelayNotEnabled(
                f"topic {self._topic}: the broker does not know {DELAY_SETTING}, so it cannot hold"
                " records back; a newer one does"
            )
        if value != "true":
            raise DelayNotEnabled(
                f"topic {self._topic} does not hold records back: `ottla config set topic"
                f" {self._topic} {DELAY_SETTING}=true` makes it"
            )
        self._can_delay = True

    async def _send(self, tp: TopicPartition) -> None:
        """Write what waits for a partition, one batch after the other."""
        try:
            while waiting := self._waiting.pop(tp, None):
                count = _batch_count(waiting)
                if waiting[count:]:
                    self._waiting[tp] = waiting[count:]
                await self._write(tp, [one for one in waiting[:count] if not one.receipt.done()])
        finally:
            del self._senders[tp]

    async def _write(self, tp: TopicPartition, waiting: Sequence[_Waiting]) -> None:
        if not waiting:
            return  # those who sent them have gone
        producer: IdempotentProducer | None = None
        try:
            producer = await self._open()
            offset = await producer.write(tp, [one.record for one in waiting])
        except BaseException as problem:
            if _is_too_large(problem) and len(waiting) > 1:
                await self._write_halves(tp, waiting)
                return
            # Whether it was written is not known: its sequence is not used again.
            if self._producer is producer:
                self._producer = None
            _fail(waiting, problem)
            if not isinstance(problem, Exception):
                raise
            return
        for index, one in enumerate(waiting):
            if not one.receipt.done():
                at = None if offset is None else offset + index
                one.receipt.set_result(Receipt(tp.topic, tp.partition, at))

    async def _write_halves(self, tp: TopicPartition, waiting: Sequence[_Waiting]) -> None:
        """Write in two batches what is too large together."""
        half = len(waiting) // 2
        try:
            for some in (waiting[:half], waiting[half:]):
                await self._write(tp, [one for one in some if not one.receipt.done()])
        except BaseException as problem:
            _fail(waiting, problem)
            raise

    async def _open(self) -> IdempotentProducer:
        async with self._opening:
            if self._producer is None:
                self._producer = await IdempotentProducer.open(self._client)
            return self._producer


def _batch_count(waiting: Sequence[_Waiting]) -> int:
    """How many messages go into the next batch: one at least."""
    size_bytes = 0
    for index, one in enumerate(waiting[:_BATCH_RECORDS]):
        size_bytes += one.size_bytes
        if index and size_bytes > _BATCH_BYTES:
            return index
    return min(len(waiting), _BATCH_RECORDS)


def _fail(waiting: Sequence[_Waiting], problem: BaseException) -> None:
    for one in waiting:
        if not one.receipt.done():
            one.receipt.set_exception(problem)


def _is_too_large(problem: BaseException) -> bool:
    """True if a batch has more bytes than its topic takes: none of it was written."""
    return isinstance(problem, Refused) and problem.code is ErrorCode.MESSAGE_TOO_LARGE


def _timing(
    delay_s: float | None, at: datetime | None, ttl_s: float | None
) -> list[tuple[str, bytes]]:
    """The headers that say when a message is delivered."""
    found: list[tuple[str, bytes]] = []
    if delay_s is not None and at is not None:
        raise ValueError("a message has a delay or a time at which it is delivered, not both")
    if delay_s is not None:
        found.append((DELAY, b"%d" % _milliseconds("delay", delay_s)))
    if at is not None:
        if at.tzinfo is None:
            raise ValueError("at: a time with a time zone, such as datetime.now(UTC)")
        at_ms = TimestampMs(int(at.timestamp() * 1000))
        if at_ms < 0:
            raise ValueError("at: before 1970")
        found.append((DELIVER_AT, b"%d" % at_ms))
    if ttl_s is not None:
        found.append((TTL, b"%d" % _milliseconds("ttl", ttl_s)))
    return found


def _milliseconds(name: str, seconds: float) -> int:
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name}: {seconds} is not a number of seconds from 0 on")
    return int(seconds * 1000)


def _encoded(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _bytes(value)) for name, value in pairs]


def _bytes(value: Value) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"bytes or text, not {type(value).__name__}")
    return value
