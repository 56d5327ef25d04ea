"""Topics that are created, extended and deleted: each item of a request has one result."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.model import NO_UUID, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def creatable(name: str) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=1, replication_factor=1)


def test_a_topic_that_is_named_twice_is_refused_once(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        request = CreateTopicsRequest(topics=[creatable(name) for name in ("a", "b", "a")])
        response = await handled.call(ApiKey.CREATE_TOPICS, request, 7)
        results = [(topic.name, topic.error_code) for topic in response.topics]
        assert results == [("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.NONE)]

    handle(tmp_path, scenario)


def test_a_validated_topic_has_no_id_and_does_not_exist(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        request = CreateTopicsRequest(topics=[creatable("a")], validate_only=True)
        response = await handled.call(ApiKey.CREATE_TOPICS, request, 7)
        (topic,) = response.topics
        assert (topic.error_code, topic.topic_id, topic.num_partitions) == (0, NO_UUID, 1)
        assert "a" not in handled.services.state.image.topics

    handle(tmp_path, scenario)


def test_topics_are_deleted_by_name_and_by_id(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        for name in ("a", "b"):
            await handled.create_topic(name)
        topic_id = handled.services.state.image.topics["b"].id
        topics = [
            DeleteTopicState(name="a", topic_id=NO_UUID),
            DeleteTopicState(name=None, topic_id=topic_id),
            DeleteTopicState(name=None, topic_id=Uuid(b"\1" * 16)),
        ]
        request = DeleteTopicsRequest(topics=topics)
        response = await handled.call(ApiKey.DELETE_TOPICS, request, 6)
        results = {result.name: result.error_code for result in response.responses}
        assert results == {"a": 0, "b": 0, None: ErrorCode.UNKNOWN_TOPIC_ID}
        assert handled.services.state.image.topics == {}

    handle(tmp_path, scenario)


def test_partitions_are_added_and_never_removed(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("a", 2)
        for count, code in ((3, ErrorCode.NONE), (1, ErrorCode.INVALID_PARTITIONS)):
            topic = CreatePartitionsTopic(name="a", count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[topic])
            response = await handled.call(ApiKey.CREATE_PARTITIONS, request, 3)
            assert response.results[0].error_code == code
        assert len(handled.services.state.image.topics["a"].partitions) == 3

    handle(tmp_path, scenario)


def test_records_behind_the_high_watermark_cannot_be_deleted(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("a")
        for offset, code in ((-1, ErrorCode.NONE), (1, ErrorCode.OFFSET_OUT_OF_RANGE)):
            partition = DeleteRecordsPartition(partition_index=0, offset=offset)
            topics = [DeleteRecordsTopic(name="a", partitions=[partition])]
            request = DeleteRecordsRequest(topics=topics)
            response = await handled.call(ApiKey.DELETE_RECORDS, request, 2)
            assert response.topics[0].partitions[0].error_code == code

    handle(tmp_path, scenario)
