"""Short ways to say Produce, Fetch, ListOffsets and a few more over a raw connection."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from crc32c import crc32c

from compat.raw import RawConnection
from ottla.errors import ErrorCode
from ottla.model import NO_UUID, Uuid
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ottla.records.batch import Record, build_batch

NAMES_PRODUCE = 12  # the last version of Produce that goes by names
NAMES_FETCH = 12
IDS_FETCH = 13


def batch(*values: bytes, **more: Any) -> bytes:
    """A batch of records that carry these values."""
    return bytes(build_batch([Record(value=value) for value in values or (b"x",)], **more))


def resealed(changed: bytearray) -> bytes:
    """A batch that somebody has changed, with its true length and checksum."""
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def create_topic(raw: RawConnection, name: str, partitions: int = 1, **config: object) -> None:
    """Make a topic; settings by Kafka's names, with _ for dots."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in config.items()
        ],
    )
    answer = raw.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version=7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer


def delete_topic(raw: RawConnection, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    answer = raw.ask(request, 6)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


@contextmanager
def broker_setting(raw: RawConnection, name: str, value: str) -> Iterator[None]:
    """Change a setting of all brokers for a while."""
    _alter_brokers(raw, IncrementalAlterableConfig(name=name, config_operation=0, value=value))
    yield
    _alter_brokers(raw, IncrementalAlterableConfig(name=name, config_operation=1, value=None))


def _alter_brokers(raw: RawConnection, change: IncrementalAlterableConfig) -> None:
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    answer = raw.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


def produce_request(
    topic: str | Uuid,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    data = TopicProduceData(
        name=topic if isinstance(topic, str) else "",
        topic_id=topic if isinstance(topic, bytes) else NO_UUID,
        partition_data=[PartitionProduceData(index=partition, records=records)],
    )
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[data]
    )


def produce(
    raw: RawConnection,
    topic: str | Uuid,
    records: bytes | None,
    *,
    version: int = NAMES_PRODUCE,
    **more: Any,
) -> PartitionProduceResponse:
    """Send one batch to one partition; what the broker says about it."""
    answer = raw.ask(produce_request(topic, records, **more), version)
    (found,) = answer.responses[0].partition_responses
    assert isinstance(found, PartitionProduceResponse)
    return found


def fetch_request(
    wanted: Mapping[str | Uuid, Sequence[FetchPartition]],
    *,
    session: tuple[int, int] = (0, -1),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    **more: Any,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchTopic(
                topic=key if isinstance(key, str) else "",
                topic_id=key if isinstance(key, bytes) else NO_UUID,
                partitions=list(partitions),
            )
            for key, partitions in wanted.items()
        ],
        **more,
    )


def want(partition: int = 0, offset: int = 0, **more: Any) -> FetchPartition:
    more.setdefault("partition_max_bytes", 1 << 20)
    return FetchPartition(partition=partition, fetch_offset=offset, **more)


def fetch(
    raw: RawConnection,
    topic: str | Uuid,
    *,
    version: int = NAMES_FETCH,
    replica_id: int = -1,
    **partition: Any,
) -> FetchPartitionResponse:
    """Fetch from one partition, without session and without waiting."""
    request = fetch_request({topic: [want(**partition)]}, replica_id=replica_id)
    (found,) = raw.ask(request, version).responses[0].partitions
    assert isinstance(found, FetchPartitionResponse)
    return found


def fetched(answer: FetchResponse) -> dict[tuple[str, int], FetchPartitionResponse]:
    """What an answer holds, by topic and partition."""
    return {
        (topic.topic, partition.partition_index): partition
        for topic in answer.responses
        for partition in topic.partitions
    }


def list_offset(
    raw: RawConnection,
    topic: str,
    timestamp: int,
    *,
    version: int = 11,
    partition: int = 0,
    isolation_level: int = 0,
    leader_epoch: int = -1,
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    (found,) = raw.ask(request, version).topics[0].partitions
    assert isinstance(found, ListOffsetsPartitionResponse)
    return found


def topic_id(raw: RawConnection, topic: str) -> Uuid:
    wanted = MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
    (found,) = raw.ask(request, 12).topics
    return Uuid(bytes(found.topic_id))
