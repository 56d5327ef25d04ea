"""Requests on topics: what is sent, and what its response means."""

import pytest

from fakes.scripted_cluster import ScriptedCluster
from ottla.client.admin import (
    create_topic,
    delete_topic,
    grow_topic,
    sizes_on_leaders,
)
from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

REFUSED = ErrorCode.POLICY_VIOLATION


def created(code: ErrorCode = ErrorCode.NONE, text: str | None = None) -> ScriptedCluster:
    result = CreatableTopicResult(name="orders", error_code=code, error_message=text)
    response = CreateTopicsResponse(topics=[result])
    return ScriptedCluster({}, {ApiKey.CREATE_TOPICS: lambda request: response})


def test_a_topic_is_created_as_asked() -> None:
    cluster = created()

    async def scenario(client: Client) -> None:
        settings = {"retention.ms": "5", "cleanup.policy": "compact"}
        await create_topic(client, "orders", partitions=3, replicas=2, settings=settings)
        await create_topic(client, "orders", settings={})

    cluster.run(scenario)
    asked, plain = cluster.asked(ApiKey.CREATE_TOPICS)
    assert isinstance(asked, CreateTopicsRequest)
    assert isinstance(plain, CreateTopicsRequest)
    assert asked.timeout_ms == 1000
    assert not asked.validate_only
    (topic,) = asked.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("orders", 3, 2)
    assert {one.name: one.value for one in topic.configs} == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
    }
    (topic,) = plain.topics
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, [])


def test_a_topic_that_is_not_created_is_refused_in_the_brokers_words() -> None:
    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="topic orders: too many partitions") as refused:
            await create_topic(client, "orders", settings={})
        assert refused.value.code is REFUSED

    created(REFUSED, "too many partitions").run(scenario)


@pytest.mark.parametrize("version_max", [5, 6])
def test_a_topic_is_deleted_by_name_at_old_brokers_and_new(version_max: int) -> None:
    """From version 6 on names are in another field."""
    response = DeleteTopicsResponse(responses=[DeletableTopicResult(name="orders")])
    cluster = ScriptedCluster({}, {ApiKey.DELETE_TOPICS: lambda request: response})
    cluster.brokers[0].versions[ApiKey.DELETE_TOPICS] = range(1, version_max + 1)

    async def scenario(client: Client) -> None:
        await delete_topic(client, "orders")

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.DELETE_TOPICS)
    assert isinstance(request, DeleteTopicsRequest)
    named = request.topic_names if version_max < 6 else [one.name for one in request.topics]
    assert named == ["orders"]


def test_a_topic_that_is_not_deleted_is_refused() -> None:
    result = DeletableTopicResult(name="orders", error_code=ErrorCode.TOPIC_DELETION_DISABLED)
    response = DeleteTopicsResponse(responses=[result])
    cluster = ScriptedCluster({}, {ApiKey.DELETE_TOPICS: lambda request: response})

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match=r"topic orders: delete\.topic\.enable is false"):
            await delete_topic(client, "orders")

    cluster.run(scenario)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS])
def test_a_topic_grows_to_so_many_partitions_in_total(code: ErrorCode) -> None:
    result = CreatePartitionsTopicResult(name="orders", error_code=code)
    response = CreatePartitionsResponse(results=[result])
    cluster = ScriptedCluster({}, {ApiKey.CREATE_PARTITIONS: lambda request: response})

    async def scenario(client: Client) -> None:
        if code is ErrorCode.NONE:
            await grow_topic(client, "orders", 7)
        else:
            with pytest.raises(Refused, match="topic orders: invalid number of partitions"):
                await grow_topic(client, "orders", 7)

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.CREATE_PARTITIONS)
    assert isinstance(request, CreatePartitionsRequest)
    (topic,) = request.topics
    assert (topic.name, topic.count, topic.assignments) == ("orders", 7, None)


def measured(request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Two disks, the second without logs; a partition has its number times a hundred bytes."""
    topics = [
        DescribeLogDirsTopic(
            name=topic.topic,
            partitions=[
                DescribeLogDirsPartition(partition_index=index, partition_size=100 * index)
                for index in topic.partitions
            ],
        )
        for topic in request.topics or ()
    ]
    return DescribeLogDirsResponse(
        results=[DescribeLogDirsResult(topics=topics), DescribeLogDirsResult()]
    )


TPS = [TopicPartition("orders", index) for index in range(4)]


def test_each_leader_is_asked_for_the_sizes_of_its_partitions_alone() -> None:
    cluster = ScriptedCluster({"orders": 4}, {ApiKey.DESCRIBE_LOG_DIRS: measured}, broker_count=2)

    async def scenario(client: Client) -> None:
        assert await sizes_on_leaders(client, TPS) == {tp: 100 * tp.partition for tp in TPS}

    cluster.run(scenario)
    for broker, partitions in ((0, [0, 2]), (1, [1, 3])):
        (request,) = cluster.asked(ApiKey.DESCRIBE_LOG_DIRS, broker)
        assert isinstance(request, DescribeLogDirsRequest)
        assert [(one.topic, one.partitions) for one in request.topics or ()] == [
            ("orders", partitions)
        ]


def test_brokers_that_cannot_measure_leave_sizes_unknown() -> None:
    cluster = ScriptedCluster({"orders": 4}, {})
    del cluster.brokers[0].versions[ApiKey.DESCRIBE_LOG_DIRS]

    async def scenario(client: Client) -> None:
        assert await sizes_on_leaders(client, TPS) == {}

    cluster.run(scenario)


def test_a_disk_that_failed_is_named_with_its_broker() -> None:
    failed = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    response = DescribeLogDirsResponse(results=[failed])
    cluster = ScriptedCluster({"orders": 4}, {ApiKey.DESCRIBE_LOG_DIRS: lambda request: response})

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="the disk of broker 0: the broker's disk has failed"):
            await sizes_on_leaders(client, TPS)

    cluster.run(scenario)
