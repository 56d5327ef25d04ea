"""The group coordinator: its limits, and the offsets that it drops by itself."""

import asyncio
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.cluster.controller.decision import Decision
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import Change, StoredTopic, topic_key
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.offsets import Commit
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.topics import DeleteTopicsRequest

ALONE = Committer(member_id="", instance_id=None, generation=-1, version=9)


async def commit(handled: Handled, group_id: str, topic: str = "t", *, index: int = 0) -> ErrorCode:
    """Commit a partition of a topic; the error."""
    commits = [Commit(TopicPartition(topic, index), Offset(1), NO_EPOCH, "")]
    errors: list[ErrorCode] = await handled.services.groups.run(
        group_id,
        lambda groups, ticket, now_ms: groups.commit(ticket, group_id, ALONE, commits, now_ms),
    )
    return errors[0]


def test_groups_of_all_shards_together_are_limited(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        codes = [await commit(handled, group_id) for group_id in ("a", "b", "c", "a")]
        assert codes == [0, 0, ErrorCode.POLICY_VIOLATION, 0]

    handle(tmp_path, scenario, max_groups="2")


def test_offsets_of_a_deleted_topic_are_dropped(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        for topic in ("t", "u"):
            await handled.create_topic(topic)
            assert await commit(handled, "g", topic) is ErrorCode.NONE
        request = DeleteTopicsRequest(topic_names=["t"])
        await handled.call(ApiKey.DELETE_TOPICS, request, 5)
        (groups,) = handled.services.groups.machines()
        while True:
            if list(groups.offsets.by_group["g"]) == [TopicPartition("u", 0)]:
                break
            await asyncio.sleep(0.01)

    handle(tmp_path, scenario)


def test_offsets_of_partitions_that_are_listed_no_more_are_dropped_when_a_shard_is_read(
    tmp_path: Path,
) -> None:
    def list_two(image: ClusterImage) -> Decision[None]:
        topic = image.topics["t"]
        stored = StoredTopic("t", topic.id, 3, topic.config, listed_count=2)
        return Decision((Change(topic_key("t"), stored),), None)

    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t", 3)
        coordinator = handled.services.groups
        await handled.services.state.commit(list_two)
        for index in range(3):
            await commit(handled, "g", index=index)
        (shard,) = coordinator._shards.values()
        await coordinator.note_loaded(shard)
        assert list(shard.machine.offsets.by_group["g"]) == [
            TopicPartition("t", 0),
            TopicPartition("t", 1),
        ]

    handle(tmp_path, scenario)


def test_an_offset_expires_with_its_group_after_the_retention_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ottla.coordinator")

    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        coordinator = handled.services.groups
        for topic in ("t", "u", "v"):
            await handled.create_topic(topic)
            await commit(handled, "g", topic)
        await coordinator.expire()
        (groups,) = coordinator.machines()
        assert list(groups.groups) == ["g"], "a week has not passed"
        coordinator._origin_ms += 8 * 24 * 3_600_000
        await coordinator.expire()
        assert groups.groups == {}

    handle(tmp_path, scenario)
    counts = {
        record.message: record.__dict__["count"]
        for record in caplog.records
        if "count" in record.__dict__ and record.name == "ottla.coordinator"
    }
    assert counts == {"offsets expired": 3, "groups without offsets dropped": 1}


def test_member_ids_are_random_uuids(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        ids = {handled.services.groups._new_id() for _ in range(100)}
        assert len(ids) == 100
        assert {tuple(map(len, one.split("-"))) for one in ids} == {(8, 4, 4, 4, 12)}

    handle(tmp_path, scenario)
