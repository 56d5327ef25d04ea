"""What can be asked about partitions: write a batch, read batches, find offsets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, Refused, Unreachable, check
from ottla.client.isolation import AbortedTransaction
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Offset, ProducerId, TopicPartition
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import Buffer

LATEST: Final = -1  # in place of a timestamp: where the next record will go
EARLIEST: Final = -2  # in place of a timestamp: where the log begins

# The last versions that call topics by their names: they need no ids to be looked up first.
_PRODUCE_BY_NAME: Final = 12
_FETCH_BY_NAME: Final = 12
_ANSWER_MARGIN_S: Final = 10.0  # an answer may take this much longer than the broker may wait


class Isolation(IntEnum):
    """What of transactions a reader wants to see."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Acks(IntEnum):
    """How safe a batch must be before the broker answers."""

    NONE = 0  # there is no answer at all
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class TransactionTag:
    """The transaction a batch belongs to, and the last version of Produce that goes with it."""

    transactional_id: str
    produce_version_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one partition answered: whole batches, and perhaps a part of one more."""

    batches: Buffer
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How much a fetch may bring, and how long the broker may wait for it."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 16 << 20
    partition_bytes_max: int = 4 << 20


DEFAULT_LIMITS: Final = FetchLimits()


async def produce(
    client: Client, tp: TopicPartition, batch: Buffer, acks: Acks = Acks.ALL
) -> Offset | None:
    """Append a batch; the offset of its first record, or None when acks asks for no answer.

    Tried again only while the broker has certainly not written it. `ConnectionLost` and
    `DeadlineExceeded` leave open whether it has.
    """
    return await client.retry(lambda: produce_once(client, tp, batch, acks))


async def produce_once(
    client: Client,
    tp: TopicPartition,
    batch: Buffer,
    acks: Acks = Acks.ALL,
    transaction: TransactionTag | None = None,
) -> Offset | None:
    """`produce` without trying again: for those who know better when that does no harm."""
    leader = await client.leader_of(tp)
    data = PartitionProduceData(index=tp.partition, records=batch)
    request = ProduceRequest(
        transactional_id=None if transaction is None else transaction.transactional_id,
        acks=acks,
        timeout_ms=int(client.timeout_s * 1000),
        topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
    )
    if acks is Acks.NONE:
        (await client.connect_broker(leader)).tell(request, version_max=_PRODUCE_BY_NAME)
        return None
    answer = await client.ask_broker(
        leader,
        request,
        ProduceResponse,
        timeout_s=client.timeout_s + _ANSWER_MARGIN_S,
        version_max=_PRODUCE_BY_NAME if transaction is None else transaction.produce_version_max,
    )
    result = answer.responses[0].partition_responses[0]
    check(result.error_code, str(tp), result.error_message)
    return Offset(result.base_offset)


async def wait_received(client: Client, tps: Iterable[TopicPartition]) -> None:
    """Return once the leaders have read every batch that was produced without acks.

    A broker answers in order, so any answer says that what went before has been read.
    """
    for leader in await client.by_leader(tps):
        await client.ask_broker(leader, MetadataRequest(topics=[]), MetadataResponse)


async def fetch(
    client: Client,
    leader: BrokerId,
    positions: Mapping[TopicPartition, Offset],
    *,
    limits: FetchLimits = DEFAULT_LIMITS,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Fetched]:
    """Ask a leader for what follows `positions`; partitions without news are left out."""
    topics = [
        FetchTopic(
            topic=topic,
            partitions=[
                FetchPartition(
                    partition=tp.partition,
                    fetch_offset=positions[tp],
                    partition_max_bytes=limits.partition_bytes_max,
                )
                for tp in tps
            ],
        )
        for topic, tps in by_topic(positions).items()
    ]
    request = FetchRequest(
        max_wait_ms=limits.wait_ms_max,
        min_bytes=limits.bytes_min,
        max_bytes=limits.bytes_max,
        isolation_level=isolation,
        topics=topics,
    )
    answer = await client.ask_broker(
        leader,
        request,
        FetchResponse,
        timeout_s=limits.wait_ms_max / 1000 + client.timeout_s,
        version_max=_FETCH_BY_NAME,
    )
    check(answer.error_code, "fetch")
    fetched = dict[TopicPartition, Fetched]()
    for topic in answer.responses:
        for partition in topic.partitions:
            tp = TopicPartition(topic.topic, partition.partition_index)
            _check_fetched(tp, partition, positions.get(tp))
            fetched[tp] = _fetched(partition)
    return fetched


async def list_offsets(
    client: Client,
    timestamps: Mapping[TopicPartition, int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Offset | None]:
    """The first offset not older than each timestamp, or None when every record is older.

    `EARLIEST` and `LATEST` stand for the two ends.
    """
    return await client.retry(
        lambda: _list_offsets(client, timestamps, isolation), on=(Unreachable, ConnectionLost)
    )


async def _list_offsets(
    client: Client, timestamps: Mapping[TopicPartition, int], isolation: Isolation
) -> dict[TopicPartition, Offset | None]:
    found = dict[TopicPartition, Offset | None]()
    for leader, led in (await client.by_leader(timestamps)).items():
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamps[tp])
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(led).items()
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=topics,
            timeout_ms=int(client.timeout_s * 1000),
        )
        answer = await client.ask_broker(leader, request, ListOffsetsResponse)
        for topic in answer.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, str(tp))
                found[tp] = None if partition.offset < 0 else Offset(partition.offset)
    return found


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Partitions grouped by topic, as requests list them."""
    groups = dict[str, list[TopicPartition]]()
    for tp in tps:
        groups.setdefault(tp.topic, []).append(tp)
    return groups


def _check_fetched(
    tp: TopicPartition, answer: FetchPartitionResponse, position: Offset | None
) -> None:
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            str(tp),
            f"there is no offset {position} any more or yet; the log begins at"
            f" {answer.log_start_offset} and ends at {answer.high_watermark}",
        )
    check(answer.error_code, str(tp))


def _fetched(answer: FetchPartitionResponse) -> Fetched:
    return Fetched(
        answer.records or b"",
        tuple(
            (Offset(item.first_offset), ProducerId(item.producer_id))
            for item in answer.aborted_transactions or ()
        ),
        Offset(answer.high_watermark),
    )
