"""Requests on partitions: produce a batch, fetch batches, list offsets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import (
    ConnectionLost,
    RecordsRefused,
    Refused,
    Unreachable,
    check,
    known_code,
)
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

# The last versions with topic names: they need no topic ids.
_PRODUCE_BY_NAME: Final = 12
_FETCH_BY_NAME: Final = 12
_RESPONSE_MARGIN_S: Final = 10.0  # a response may take this much longer than the broker may wait


class Isolation(IntEnum):
    """The isolation level of a reader."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Acks(IntEnum):
    """The guarantee for a batch before the broker responds."""

    NONE = 0  # no response at all
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True)
class TransactionTag:
    """The transactional id of a batch, and the highest Produce version of its transaction."""

    transactional_id: str
    produce_version_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The fetched data of one partition: whole batches, perhaps followed by a partial one."""

    batches: Buffer
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The size limits of a fetch, and how long the broker may wait for data."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 16 << 20
    partition_bytes_max: int = 4 << 20


DEFAULT_LIMITS: Final = FetchLimits()


async def produce(
    client: Client, tp: TopicPartition, batch: Buffer, acks: Acks = Acks.ALL
) -> Offset | None:
    """Append a batch; the offset of its first record, or None with acks=0.

    Retried only while the broker has certainly not written it. After `ConnectionLost` and
    `DeadlineExceeded` it may have been written.
    """
    return await client.retry(lambda: produce_once(client, tp, batch, acks))


async def produce_once(
    client: Client,
    tp: TopicPartition,
    batch: Buffer,
    acks: Acks = Acks.ALL,
    transaction: TransactionTag | None = None,
) -> Offset | None:
    """`produce` without retries: for callers with their own rules for retrying."""
    leader = await client.leader_of(tp)
    data = PartitionProduceData(index=tp.partition, records=batch)
    request = ProduceRequest(
        transactional_id=None if transaction is None else transaction.transactional_id,
        acks=acks,
        timeout_ms=int(client.timeout_s * 1000),
        topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
    )
    if acks is Acks.NONE:
        (await client.connect_broker(leader)).send_oneway(request, version_max=_PRODUCE_BY_NAME)
        return None
    response = await client.send_to_broker(
        leader,
        request,
        ProduceResponse,
        timeout_s=client.timeout_s + _RESPONSE_MARGIN_S,
        version_max=_PRODUCE_BY_NAME if transaction is None else transaction.produce_version_max,
    )
    result = response.responses[0].partition_responses[0]
    if result.record_errors:
        reasons = {
            one.batch_index: one.batch_index_error_message or "" for one in result.record_errors
        }
        raise RecordsRefused(known_code(result.error_code), str(tp), result.error_message, reasons)
    check(result.error_code, str(tp), result.error_message)
    return Offset(result.base_offset)


async def wait_received(client: Client, tps: Iterable[TopicPartition]) -> None:
    """Return once the leaders have read every batch that was produced without acks.

    A broker responds in order, so any response means that earlier requests have been read.
    """
    for leader in await client.by_leader(tps):
        await client.send_to_broker(leader, MetadataRequest(topics=[]), MetadataResponse)


async def fetch(
    client: Client,
    leader: BrokerId,
    positions: Mapping[TopicPartition, Offset],
    *,
    limits: FetchLimits = DEFAULT_LIMITS,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Fetched]:
    """Fetch from a leader at `positions`; partitions without new data are left out."""
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
    response = await client.send_to_broker(
        leader,
        request,
        FetchResponse,
        timeout_s=limits.wait_ms_max / 1000 + client.timeout_s,
        version_max=_FETCH_BY_NAME,
    )
    check(response.error_code, "fetch")
    fetched = dict[TopicPartition, Fetched]()
    for topic in response.responses:
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

    The timestamps `EARLIEST` and `LATEST` mean the two ends.
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
        response = await client.send_to_broker(leader, request, ListOffsetsResponse)
        for topic in response.topics:
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
    tp: TopicPartition, response: FetchPartitionResponse, position: Offset | None
) -> None:
    if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise Refused(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            str(tp),
            f"offset {position} is out of range; the log begins at"
            f" {response.log_start_offset} and ends at {response.high_watermark}",
        )
    check(response.error_code, str(tp))


def _fetched(response: FetchPartitionResponse) -> Fetched:
    return Fetched(
        response.records or b"",
        tuple(
            (Offset(item.first_offset), ProducerId(item.producer_id))
            for item in response.aborted_transactions or ()
        ),
        Offset(response.high_watermark),
    )
