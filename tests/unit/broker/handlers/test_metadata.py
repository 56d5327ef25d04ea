"""Metadata: brokers, topics and leaders; topics that are missing, wrong or named twice."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.model import NO_UUID, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)


def by_name(*names: str, creates: bool = False) -> MetadataRequest:
    topics = [MetadataRequestTopic(topic_id=NO_UUID, name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=creates)


def test_a_topic_is_created_only_if_the_request_allows_it(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        response = await handled.call(ApiKey.METADATA, by_name("t"), 12)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = await handled.call(ApiKey.METADATA, by_name("t", creates=True), 12)
        (topic,) = response.topics
        assert (topic.error_code, topic.partitions[0].leader_id) == (0, 0)
        assert [broker.node_id for broker in response.brokers] == [0]

    handle(tmp_path, scenario)


def test_an_invalid_name_is_not_created(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        response = await handled.call(ApiKey.METADATA, by_name("a b", creates=True), 12)
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    handle(tmp_path, scenario)


def test_topics_are_described_by_id_from_version_12_on(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        topic_id = handled.services.state.image.topics["t"].id
        ids = (topic_id, topic_id, Uuid(b"\1" * 16))
        topics = [MetadataRequestTopic(topic_id=one, name=None) for one in ids]
        request = MetadataRequest(topics=topics)
        found, unknown = (await handled.call(ApiKey.METADATA, request, 12)).topics
        assert (found.name, found.error_code) == ("t", 0)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        refused = await handled.call(ApiKey.METADATA, request, 11)
        assert {topic.error_code for topic in refused.topics} == {ErrorCode.INVALID_REQUEST}

    handle(tmp_path, scenario)


def test_partitions_are_described_in_pages(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("a", 3)
        await handled.create_topic("b", 2)
        pages = []
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
            response = await handled.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, 0)
            pages.append(
                [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
            )
            cursor = response.next_cursor
            if cursor is None:
                break
        assert pages == [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1)]]

    handle(tmp_path, scenario)
