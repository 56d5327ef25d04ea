"""Dead letters of share groups: reading them, and sending records back to their topics.

A redriven record and a note about it in the dead-letter topic are written in one transaction, of a
transactional id for each partition. Opening the id ends what another redrive has begun, so each
dead letter goes back once, however many redrives run or die.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.configs import settings_of, topic_resource
from ottla.client.errors import ClientError
from ottla.client.partitions import Isolation, list_offsets
from ottla.client.reader import ReadRange, read
from ottla.client.transactional_producer import TransactionalProducer
from ottla.model import Offset, TimestampMs, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST
from ottla.records.batch import HEADER_BYTES, Packed, Record, pack
from ottla.records.dead_letter_headers import (
    CAUSE,
    DELIVERIES,
    GROUP,
    HAS_NO_COPY,
    HISTORY,
    MESSAGE,
    OFFSET,
    PARTITION,
    REDRIVEN,
    TOPIC,
    redrive_note,
    redriven,
)

LIMIT_SETTING: Final = "max.message.bytes"
ENABLE_SETTING: Final = "errors.deadletterqueue.group.enable"
_COMMITTED: Final = Isolation.READ_COMMITTED
_TRANSACTION_RECORDS: Final = 100
_BATCH_BYTES_MAX: Final = 1_000_000  # by default topics take a little more
_DELTAS_BYTES_MAX: Final = 15  # more than 2, of a record that is alone
_ID_PREFIX: Final = "ottla-dlq-redrive-"
_MOST_DIGITS: Final = 19  # of an int64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter, and the record that it is about."""

    tp: TopicPartition
    record: Record
    source: TopicPartition
    source_offset: int
    group: str
    deliveries: int
    cause: str
    message: str
    history: tuple[str, ...]
    has_copy: bool
    is_redriven: bool

    @property
    def offset(self) -> Offset:
        return self.record.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterChoice:
    """Limits of which dead letters are meant; None means any."""

    key: bytes | None = None
    cause: str | None = None
    group: str | None = None
    since_ms: TimestampMs | None = None  # of the time at which it was written
    until_ms: TimestampMs | None = None
    count_max: int | None = None

    def has(self, item: DeadLetter) -> bool:
        """True if the limits, but for the count, allow a dead letter."""
        died_ms = item.record.timestamp_ms
        return (
            (self.key is None or item.record.key == self.key)
            and (self.cause is None or item.cause == self.cause)
            and (self.group is None or item.group == self.group)
            and (self.since_ms is None or died_ms >= self.since_ms)
            and (self.until_ms is None or died_ms < self.until_ms)
        )


@dataclass(slots=True)
class Redriven:
    """Counts of a redrive."""

    count: int = 0
    without_copy: int = 0  # whose dead letters do not have the record
    without_topic: int = 0  # whose topic, or partition, does not exist any more
    too_large: int = 0  # whose record is larger than its topic takes by now


async def dead_letter_topics(client: Client) -> list[str]:
    """The topics that share groups may write dead letters to."""
    names = sorted(name for name, t in (await client.describe(None)).topics.items() if t.partitions)
    found = await settings_of(client, [topic_resource(name) for name in names])
    return [
        name
        for name in names
        for item in found[topic_resource(name)]
        if item.name == ENABLE_SETTING and item.value == "true"
    ]


async def partitions_of(client: Client, topic: str) -> list[TopicPartition]:
    """The partitions of a topic that exists."""
    view = await client.describe([topic])
    return [TopicPartition(topic, item.index) for item in view.topics[topic].partitions]


async def read_dead_letters(
    client: Client, tps: Sequence[TopicPartition]
) -> AsyncIterator[DeadLetter]:
    """The dead letters of partitions, in the order of each, redriven ones included.

    The topic is read twice: notes about what was redriven are behind the dead letters.
    """
    starts = await list_offsets(client, dict.fromkeys(tps, EARLIEST), _COMMITTED)
    ends = await list_offsets(client, dict.fromkeys(tps, LATEST), _COMMITTED)
    ranges = {tp: ReadRange(starts[tp] or Offset(0), ends[tp] or Offset(0)) for tp in tps}
    noted: set[tuple[TopicPartition, int]] = set()
    async for found in read(client, ranges, isolation=_COMMITTED):
        for batch in found:
            for record in batch.records():
                note = _number(dict(record.headers).get(REDRIVEN))
                if note is not None:
                    noted.add((batch.tp, note))
    async for found in read(client, ranges, isolation=_COMMITTED):
        for batch in found:
            for record in batch.records():
                item = _parse(batch.tp, record, (batch.tp, record.offset) in noted)
                if item is not None:
                    yield item


async def redrive(
    client: Client,
    topic: str,
    choice: DeadLetterChoice,
    now_ms: Callable[[], TimestampMs],
) -> Redriven:
    """Send the records of chosen dead letters back, each once; those that went back before stay."""
    counts = Redriven()
    sources: dict[str, int] = {
        name: len(found.partitions) for name, found in (await client.describe(None)).topics.items()
    }
    limits: dict[str, int] = {}
    for tp in await partitions_of(client, topic):
        left = None if choice.count_max is None else choice.count_max - counts.count
        if left is not None and left <= 0:
            break
        producer = await TransactionalProducer.open(client, f"{_ID_PREFIX}{tp}")
        await _check_decided(client, tp)
        chosen: list[DeadLetter] = []
        async for item in read_dead_letters(client, [tp]):
            if item.is_redriven or not choice.has(item):
                continue
            if not item.has_copy:
                counts.without_copy += 1
            elif item.source.partition >= sources.get(item.source.topic, 0):
                counts.without_topic += 1
            elif left is not None and len(chosen) == left:
                continue
            elif await _batch_limit(client, limits, item.source.topic) < _size_alone(item):
                counts.too_large += 1
            else:
                chosen.append(item)
            if len(chosen) == _TRANSACTION_RECORDS:
                counts.count += await _send_back(producer, limits, tp, chosen, now_ms())
                left = None if left is None else left - len(chosen)
                chosen = []
        counts.count += await _send_back(producer, limits, tp, chosen, now_ms())
    return counts


async def _check_decided(client: Client, tp: TopicPartition) -> None:
    """Refuse a partition with an open transaction: notes behind its start would not be seen."""
    ends = await list_offsets(client, {tp: LATEST}, Isolation.READ_UNCOMMITTED)
    stable_ends = await list_offsets(client, {tp: LATEST}, _COMMITTED)
    if (stable_ends[tp] or 0) < (ends[tp] or 0):
        raise ClientError(
            f"a transaction is open in {tp}: `ottla txn list` shows which; try again when it ended"
        )


async def _send_back(
    producer: TransactionalProducer,
    limits: Mapping[str, int],
    tp: TopicPartition,
    dead: Sequence[DeadLetter],
    now_ms: TimestampMs,
) -> int:
    """Send records back and note it, in one transaction."""
    if not dead:
        return 0
    sources: dict[TopicPartition, list[Record]] = {}
    for item in dead:
        sources.setdefault(item.source, []).append(redriven(item.record, now_ms))
    for source, records in sources.items():
        for packed in _packed(records, limits[source.topic]):
            await producer.write_packed(source, packed)
    await producer.write_packed(tp, pack([redrive_note(one.offset, now_ms) for one in dead]))
    await producer.commit()
    return len(dead)


async def _batch_limit(client: Client, known: dict[str, int], topic: str) -> int:
    """The size of the largest batch that a topic takes; asked for once."""
    if topic not in known:
        found = await settings_of(client, [topic_resource(topic)])
        values = {item.name: item.value for item in found[topic_resource(topic)]}
        known[topic] = int(values.get(LIMIT_SETTING) or _BATCH_BYTES_MAX)
    return known[topic]


def _size_alone(item: DeadLetter) -> int:
    """The size of the batch in which the record goes back if it goes alone, at whatever time."""
    return HEADER_BYTES + len(pack([redriven(item.record, TimestampMs(0))]).payload)


def _packed(records: Sequence[Record], bytes_max: int) -> Iterator[Packed]:
    """Records, none of them larger alone, in batches of at most so many bytes."""
    room = min(bytes_max, _BATCH_BYTES_MAX) - HEADER_BYTES
    some: list[Record] = []
    size_bytes = 0
    for record in records:
        # Behind others its offset and timestamp are written as differences.
        more_bytes = len(pack([record]).payload) + _DELTAS_BYTES_MAX
        if some and size_bytes + more_bytes > room:
            yield pack(some)
            some, size_bytes = [], 0
        some.append(record)
        size_bytes += more_bytes
    if some:
        yield pack(some)


def _parse(tp: TopicPartition, record: Record, is_redriven: bool) -> DeadLetter | None:
    """The dead letter in a record; None for any other record, such as a note."""
    headers = dict(record.headers)
    partition, offset = _number(headers.get(PARTITION)), _number(headers.get(OFFSET))
    if TOPIC not in headers or partition is None or offset is None:
        return None
    return DeadLetter(
        tp=tp,
        record=record,
        source=TopicPartition(_text(headers.get(TOPIC)), partition),
        source_offset=offset,
        group=_text(headers.get(GROUP)),
        deliveries=_number(headers.get(DELIVERIES)) or 0,
        cause=_text(headers.get(CAUSE)),
        message=_text(headers.get(MESSAGE)),
        history=tuple(_text(headers.get(HISTORY)).splitlines()),
        has_copy=HAS_NO_COPY not in headers,
        is_redriven=is_redriven,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    """A number as brokers write it; anyone may write the same header, of any length."""
    is_number = value is not None and value.isdigit() and len(value) <= _MOST_DIGITS
    return int(value) if value is not None and is_number else None
