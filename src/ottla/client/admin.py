"""Requests on topics: create, grow, trim, measure and delete."""

from collections.abc import Mapping, Sequence

from ottla.client.client import Client
from ottla.client.configs import alter_settings, topic_resource
from ottla.client.errors import NoSuchTopic, NotSupported, Refused, check
from ottla.client.partitions import by_topic
from ottla.config.topic import ACTIVE_PARTITIONS
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.topics import (
    BROKER_DEFAULT,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    settings: Mapping[str, str],
) -> None:
    """Create a topic."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_timeout_ms(client))
    response = await client.send_to_any(request, CreateTopicsResponse)
    for result in response.topics:
        check(result.error_code, f"topic {result.name}", result.error_message)


async def delete_topic(client: Client, name: str) -> None:
    """Delete a topic and all its records."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=_timeout_ms(client)
    )
    response = await client.send_to_any(request, DeleteTopicsResponse)
    for result in response.responses:
        _check(result.error_code, name, result.error_message)


async def grow_topic(client: Client, name: str, partition_count: int) -> None:
    """Grow a topic to `partition_count` partitions in total."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=partition_count, assignments=None)],
        timeout_ms=_timeout_ms(client),
    )
    response = await client.send_to_any(request, CreatePartitionsResponse)
    for result in response.results:
        _check(result.error_code, name, result.error_message)


async def resize_topic(
    client: Client, name: str, partition_count: int, settings: Mapping[str, str]
) -> bool:
    """Have a topic with so many active partitions; True if it lists others, which are sealed.

    `settings` are made at the same time.
    """
    try:
        await grow_topic(client, name, partition_count)
    except Refused as refusal:
        if refusal.code is not ErrorCode.INVALID_PARTITIONS:
            raise
        settings = {ACTIVE_PARTITIONS: str(partition_count), **settings}
    if settings:
        await alter_settings(client, topic_resource(name), assign=settings, remove=())
    view = await client.describe([name])
    return len(view.topics[name].partitions) > partition_count


async def delete_records(
    client: Client, befores: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, Offset]:
    """Delete the records before an offset of each partition; returns where the logs begin then."""
    starts = dict[TopicPartition, Offset]()
    for leader, led in (await client.by_leader(befores)).items():
        topics = [
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=tp.partition, offset=befores[tp])
                    for tp in tps
                ],
            )
            for topic, tps in by_topic(led).items()
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=_timeout_ms(client))
        response = await client.send_to_broker(leader, request, DeleteRecordsResponse)
        for result in response.topics:
            for partition in result.partitions:
                tp = TopicPartition(result.name, partition.partition_index)
                check(partition.error_code, str(tp))
                starts[tp] = Offset(partition.low_watermark)
    return starts


async def sizes_on_leaders(
    client: Client, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The size of each partition on its leader's disk; empty if brokers do not support it."""
    sizes = dict[TopicPartition, int]()
    for leader, led in (await client.by_leader(tps)).items():
        wanted = dict[str, list[int]]()
        for tp in led:
            wanted.setdefault(tp.topic, []).append(tp.partition)
        request = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in wanted.items()
            ]
        )
        try:
            response = await client.send_to_broker(leader, request, DescribeLogDirsResponse)
        except NotSupported:
            return {}
        for directory in response.results:
            check(directory.error_code, f"the disk of broker {leader}")
            for topic in directory.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    sizes[tp] = partition.partition_size
    return sizes


def _check(code: int, topic: str, message: str | None) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NoSuchTopic(topic)
    check(code, f"topic {topic}", message)


def _timeout_ms(client: Client) -> int:
    return int(client.timeout_s * 1000)
