"""Offsets of groups: committed, fetched and deleted, by name and by topic id."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.model import NO_UUID, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)


async def commit(
    handled: Handled, *names: str, count: int = 1, topic_id: Uuid = NO_UUID, version: int = 9
) -> list[int]:
    """Commit partitions from 0 on, each at its index; the error of each."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata=None
        )
        for index in range(count)
    ]
    topics = [
        OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)
        for name in names
    ]
    request = OffsetCommitRequest(group_id="g", member_id="", topics=topics)
    response = await handled.call(ApiKey.OFFSET_COMMIT, request, version)
    return [p.error_code for topic in response.topics for p in topic.partitions]


def test_offsets_of_partitions_that_do_not_exist_are_refused_and_the_others_kept(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(handled, "gone", "t", count=2) == [unknown, unknown, 0, unknown]
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 5])
        request = OffsetFetchRequest(group_id="g", topics=[topic])
        response = await handled.call(ApiKey.OFFSET_FETCH, request, 7)
        (found,) = response.topics
        offsets = [(p.committed_offset, p.error_code) for p in found.partitions]
        assert offsets == [(0, 0), (-1, 0)]

    handle(tmp_path, scenario)


def test_topics_are_named_by_their_ids_from_version_10_on(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        topic_id = handled.services.state.image.topics["t"].id
        other = Uuid(b"\1" * 16)
        assert await commit(handled, "", topic_id=topic_id, version=10) == [0]
        refused = await commit(handled, "", topic_id=other, version=10)
        assert refused == [ErrorCode.UNKNOWN_TOPIC_ID]
        topics = [
            OffsetFetchRequestTopics(name="", topic_id=one, partition_indexes=[0])
            for one in (topic_id, other)
        ]
        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=topics),
            OffsetFetchRequestGroup(group_id="g", topics=None),
        ]
        response = await handled.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups), 10)
        by_id, all_of_it = response.groups
        codes = [topic.partitions[0].error_code for topic in by_id.topics]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_ID]
        assert [topic.topic_id for topic in all_of_it.topics] == [topic_id]

    handle(tmp_path, scenario)


@pytest.mark.slow
def test_a_large_commit_is_decided_in_parts_and_has_one_response(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t", 1500)
        assert await commit(handled, "t", count=1500) == [0] * 1500

    handle(tmp_path, scenario)


def test_deleted_offsets_are_not_found_again(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        await commit(handled, "t")
        topic = OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
        request = OffsetDeleteRequest(group_id="g", topics=[topic])
        response = await handled.call(ApiKey.OFFSET_DELETE, request, 0)
        assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)
        gone = OffsetDeleteRequest(group_id="gone", topics=[topic])
        refused = await handled.call(ApiKey.OFFSET_DELETE, gone, 0)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        (machine,) = handled.services.groups.machines()
        assert machine.offsets.by_group == {}

    handle(tmp_path, scenario)
