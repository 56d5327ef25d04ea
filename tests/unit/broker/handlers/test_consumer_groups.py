"""Consumer groups over their requests: a heartbeat assigns, a description names topics."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)


def join(group_id: str = "g", server_assignor: str | None = None) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=5000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
        server_assignor=server_assignor,
    )


def test_a_member_gets_partitions_by_topic_id(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t", 2)
        response = await handled.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, join(), 1)
        assert (response.error_code, response.member_epoch) == (0, 1)
        (topic,) = response.assignment.topic_partitions
        assert topic.topic_id == handled.services.state.image.topics["t"].id
        assert topic.partitions == [0, 1]

    handle(tmp_path, scenario)


def test_a_group_has_the_heartbeat_interval_that_is_set_for_it(tmp_path: Path) -> None:
    async def interval_ms(handled: Handled, request: ConsumerGroupHeartbeatRequest) -> int:
        response = await handled.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, request, 1)
        assert response.error_code == 0
        found: int = response.heartbeat_interval_ms
        return found

    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        config = AlterableConfig(name="consumer.heartbeat.interval.ms", value="7000")
        resource = AlterConfigsResource(resource_type=32, resource_name="own", configs=[config])
        request = AlterConfigsRequest(resources=[resource])
        altered = await handled.call(ApiKey.ALTER_CONFIGS, request, 2)
        assert altered.responses[0].error_code == 0
        assert await interval_ms(handled, join("own")) == 7000
        assert await interval_ms(handled, join("other")) == 5000
        resource.configs.clear()
        await handled.call(ApiKey.ALTER_CONFIGS, request, 2)
        assert await interval_ms(handled, join("own")) == 5000

    handle(tmp_path, scenario)


def test_a_refused_heartbeat_says_what_is_wrong(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        for request in (join(group_id=""), join(server_assignor="own")):
            response = await handled.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, request, 1)
            assert response.error_code != 0
            assert response.error_message

    handle(tmp_path, scenario)


def test_a_description_leaves_deleted_topics_out(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        await handled.create_topic("t")
        await handled.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, join(), 1)
        request = ConsumerGroupDescribeRequest(group_ids=["g", "gone", ""])
        response = await handled.call(ApiKey.CONSUMER_GROUP_DESCRIBE, request, 1)
        found, gone, unnamed = response.groups
        (member,) = found.members
        assert [t.topic_name for t in member.assignment.topic_partitions] == ["t"]
        assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID

    handle(tmp_path, scenario)
