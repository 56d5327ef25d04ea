"""Requests on topics: create, grow, alter, measure and delete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import NotSupported, check
from ottla.model import TopicPartition
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
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
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_TOPIC_RESOURCE: Final = 2
_TOPIC_SOURCE: Final = 1  # a setting that was set on the topic itself
_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic; `is_own` if it was set on the topic itself."""

    name: str
    value: str | None
    is_own: bool


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
        check(result.error_code, f"topic {name}", result.error_message)


async def grow_topic(client: Client, name: str, partition_count: int) -> None:
    """Grow a topic to `partition_count` partitions in total."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=partition_count, assignments=None)],
        timeout_ms=_timeout_ms(client),
    )
    response = await client.send_to_any(request, CreatePartitionsResponse)
    for result in response.results:
        check(result.error_code, f"topic {name}", result.error_message)


async def alter_settings(
    client: Client, topic: str, *, assign: Mapping[str, str], remove: Sequence[str]
) -> None:
    """Set some of a topic's settings and return others to their defaults, all or none."""
    changes = [
        IncrementalAlterableConfig(name=name, config_operation=_SET, value=value)
        for name, value in assign.items()
    ]
    changes += [
        IncrementalAlterableConfig(name=name, config_operation=_DELETE, value=None)
        for name in remove
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = await client.send_to_any(request, IncrementalAlterConfigsResponse)
    for result in response.responses:
        check(result.error_code, f"topic {topic}", result.error_message)


async def settings_of_topics(
    client: Client, topics: Sequence[str]
) -> dict[str, list[TopicSetting]]:
    """Every setting of each topic."""
    resources = [
        DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        for name in topics
    ]
    request = DescribeConfigsRequest(resources=resources)
    response = await client.send_to_any(request, DescribeConfigsResponse)
    found = dict[str, list[TopicSetting]]()
    for result in response.results:
        check(result.error_code, f"topic {result.resource_name}", result.error_message)
        found[result.resource_name] = [
            TopicSetting(item.name, item.value, item.config_source == _TOPIC_SOURCE)
            for item in result.configs
        ]
    return found


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


def _timeout_ms(client: Client) -> int:
    return int(client.timeout_s * 1000)
