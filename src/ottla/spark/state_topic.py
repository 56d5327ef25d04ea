"""The connector's state between runs: keyed records in a compacted topic of the cluster.

Offsets of a consumer group would be simpler, but expire a week after the group's last commit, or
with their topic. Records of a compacted topic do not expire.

Every owner (a query) has its keys in one partition. A process reads a partition once and then only
new records, so that a read costs one request.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError, NoSuchTopic, Refused, Unreadable
from ottla.client.partitioner import partition_of_key
from ottla.client.partitions import Fetched, FetchLimits, Isolation, list_offsets
from ottla.client.producer import IdempotentProducer
from ottla.client.reader import ReadRange, fetch_round, take
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import LATEST
from ottla.records.batch import Record

TOPIC: Final = "__ottla_spark"
PARTITIONS: Final = 8
_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
# Small segments: the one that is written to is not compacted, and new processes read all of it.
_SETTINGS: Final = {_POLICY: _COMPACT, "segment.bytes": "1048576"}
_BEGINNING: Final = Offset(0)
_AT_ONCE: Final = FetchLimits(wait_ms_max=0)
_FETCHES_MAX: Final = 100


class StateRefused(ClientError):
    """The topic would not keep the state; the text says what to do."""


@dataclass(slots=True)
class _Partition:
    """The last value of every key of a partition, up to `position`."""

    position: Offset = _BEGINNING
    values: dict[bytes, bytes] = field(default_factory=dict)


class StateTopic:
    """Owns the values that this process has read from the topic, and the producer that writes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._partitions: dict[int, _Partition] = {}
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._producer: IdempotentProducer | None = None

    async def read(self, owner: str) -> Mapping[bytes, bytes]:
        """Every key in the owner's partition with its last value, as of this call."""
        tp = _partition_of(owner)
        async with self._reading:
            try:
                await self._catch_up(tp)
            except NoSuchTopic:  # never written to
                self._partitions.pop(tp.partition, None)
                return {}
            return self._partitions[tp.partition].values

    async def write(self, owner: str, key: bytes, value: bytes | None) -> None:
        """Store a value, or delete the key for None; returns when acks=all is reached."""
        async with self._writing:
            producer = self._producer or await self._open()
            self._producer = None  # after a write that failed its sequence is not known
            await producer.write(_partition_of(owner), [Record(key=key, value=value)])
            self._producer = producer

    # Inside

    async def _catch_up(self, tp: TopicPartition) -> None:
        """Read up to the current end of the partition.

        The end comes from ListOffsets: a leader that was just elected may not know its high
        watermark yet. It refuses ListOffsets until it does, but not a fetch.
        """
        known = self._partitions.setdefault(tp.partition, _Partition())
        ends, fetched = await asyncio.gather(
            list_offsets(self._client, {tp: LATEST}), self._fetch(tp, known)
        )
        end = ends[tp]
        assert end is not None, "every partition has an end"
        for _ in range(_FETCHES_MAX):
            records, rest = take(tp, fetched, ReadRange(known.position))
            for record in records:
                _apply(known.values, record)
            assert rest.start >= known.position, "a read never goes back"
            known.position = rest.start
            if known.position >= end:
                return
            fetched = await self._fetch(tp, known)
        raise Unreadable(f"{tp}: it ends at {end}, and nothing comes from {known.position} on")

    async def _fetch(self, tp: TopicPartition, known: _Partition) -> Fetched:
        try:
            return await self._fetch_from(tp, known.position)
        except Refused as problem:
            if problem.code is not ErrorCode.OFFSET_OUT_OF_RANGE or not known.position:
                raise
        known.position, known.values = _BEGINNING, {}  # the topic was deleted and created again
        return await self._fetch_from(tp, known.position)

    async def _fetch_from(self, tp: TopicPartition, position: Offset) -> Fetched:
        ranges = {tp: ReadRange(position)}
        found = await fetch_round(self._client, ranges, Isolation.READ_UNCOMMITTED, _AT_ONCE)
        return found[tp]

    async def _open(self) -> IdempotentProducer:
        """A producer, once the topic exists and is known to be compacted."""
        from ottla.client.configs import settings_of, topic_resource  # noqa: PLC0415

        try:
            await self._client.describe([TOPIC])
        except NoSuchTopic:
            await self._create()
        topic = topic_resource(TOPIC)
        settings = (await settings_of(self._client, [topic]))[topic]
        policy = next((one.value for one in settings if one.name == _POLICY), None)
        if policy != _COMPACT:
            raise StateRefused(
                f"topic {TOPIC} has {_POLICY}={policy} and would lose which batches were written:"
                f" set it to {_COMPACT}"
            )
        return await IdempotentProducer.open(self._client)

    async def _create(self) -> None:
        from ottla.client.admin import create_topic  # noqa: PLC0415  # once for a cluster

        try:
            await create_topic(self._client, TOPIC, partitions=PARTITIONS, settings=_SETTINGS)
        except Refused as problem:
            if problem.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        await self._client.describe_or_create(TOPIC)  # returns once every partition has a leader


def _partition_of(owner: str) -> TopicPartition:
    return TopicPartition(TOPIC, partition_of_key(owner.encode(), PARTITIONS))


def _apply(values: dict[bytes, bytes], record: Record) -> None:
    if record.key is None:
        return
    if record.value is None:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
