"""Requests about groups of the newer protocol in every version: what clients rely on."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest

from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.test_group_requests import commit, describe, find, join, sync
from compat.wire import create_topic, delete_topic, topic_id
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.consumer_protocol import parse_assignment
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.classic_groups import DeleteGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from ottla.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

VERSIONS: Final = range(2)
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("beats") / "data",
        {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "3",
            "group.consumer.max.size": "2",
            "group.consumer.assignors": "range,uniform",
        },
    )
    served.start()
    with connected(served.address) as raw:
        create_topic(raw, "t", 2)
        find(raw, "any")
    yield served
    served.stop()


@pytest.fixture
def group(raw: RawConnection) -> str:
    name = f"group-{next(_numbers)}"
    find(raw, name)
    return name


def beat(
    raw: RawConnection, group: str, member_id: str, epoch: int, version: int = 1, **more: Any
) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member_id, member_epoch=epoch, **more
    )
    return raw.ask(request, version)


def enter(
    raw: RawConnection, group: str, member_id: str = "m", version: int = 1, **more: Any
) -> Any:
    """The first heartbeat of a member."""
    first = {
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **more,
    }
    return beat(raw, group, member_id, 0, version, **first)


def describe_consumer(raw: RawConnection, *groups: str, version: int = 1) -> list[Any]:
    found: list[Any] = raw.ask(ConsumerGroupDescribeRequest(group_ids=list(groups)), version).groups
    return found


def owned(topic: Uuid, *partitions: int) -> list[HeartbeatTopicPartitions]:
    return [HeartbeatTopicPartitions(topic_id=topic, partitions=list(partitions))]


def partitions(answer: Any) -> list[tuple[Uuid, list[int]]]:
    return [(item.topic_id, item.partitions) for item in answer.assignment.topic_partitions]


def test_the_newer_protocol_is_advertised(raw: RawConnection) -> None:
    served = {api.api_key: (api.min_version, api.max_version) for api in _apis(raw)}
    assert served[68] == served[69] == (0, 1)


def _apis(raw: RawConnection) -> Any:
    return raw.ask(ApiVersionsRequest(), 0).api_keys


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_comes_stays_and_goes(raw: RawConnection, group: str, version: int) -> None:
    topic = topic_id(raw, "t")
    joined = enter(raw, group, "mine" if version else "", version)
    assert joined.error_code == ErrorCode.NONE, joined
    assert joined.member_id == "mine" if version else len(joined.member_id) == 36
    assert (joined.member_epoch, joined.heartbeat_interval_ms) == (1, 5000)
    assert partitions(joined) == [(topic, [0, 1])]
    stays = beat(raw, group, joined.member_id, 1, version)
    assert (stays.error_code, stays.member_epoch, stays.assignment) == (0, 1, None)
    full = beat(
        raw,
        group,
        joined.member_id,
        1,
        version,
        rebalance_timeout_ms=5000,
        subscribed_topic_names=["t"],
        topic_partitions=owned(topic, 0, 1),
    )
    assert partitions(full) == [(topic, [0, 1])], "whoever says everything is told everything"
    gone = beat(raw, group, joined.member_id, -1, version)
    assert (gone.error_code, gone.member_epoch) == (0, -1)
    assert beat(raw, group, joined.member_id, 1, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_partition_is_given_away_when_its_owner_has_let_go(
    raw: RawConnection, group: str
) -> None:
    topic = topic_id(raw, "t")
    enter(raw, group, "a")
    assert partitions(enter(raw, group, "b")) == []
    told = beat(raw, group, "a", 1, topic_partitions=owned(topic, 0, 1))
    assert (told.member_epoch, partitions(told)) == (1, [(topic, [0])])
    waits = beat(raw, group, "b", 2)
    assert waits.assignment is None
    assert beat(raw, group, "a", 1, topic_partitions=owned(topic, 0)).member_epoch == 2
    assert partitions(beat(raw, group, "b", 2)) == [(topic, [1])]
    assert enter(raw, group, "c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": owned(Uuid(bytes(16)), 1)}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(?=t)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 7}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_is_wrong_with_a_heartbeat_is_said(
    raw: RawConnection, group: str, more: dict[str, Any], error: ErrorCode
) -> None:
    request = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **more,
    }
    answer = raw.ask(ConsumerGroupHeartbeatRequest(**request), 1)
    assert answer.error_code == error
    assert answer.error_message
    assert describe_consumer(raw, group)[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_epochs_and_instances_are_fenced(raw: RawConnection, group: str) -> None:
    enter(raw, group, "a", instance_id="one")
    assert beat(raw, group, "a", 9, instance_id="one").error_code == ErrorCode.FENCED_MEMBER_EPOCH
    taken = enter(raw, group, "b", instance_id="one")
    assert taken.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    away = beat(raw, group, "a", -2, instance_id="one")
    assert (away.error_code, away.member_epoch) == (0, -2)
    back = enter(raw, group, "b", instance_id="one")
    assert (back.error_code, back.member_epoch) == (0, 1)
    assert partitions(back) == [(topic_id(raw, "t"), [0, 1])]
    assert beat(raw, group, "a", 1, instance_id="one").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_topic_that_is_made_anew_is_another(raw: RawConnection, group: str) -> None:
    name = f"again-{next(_numbers)}"
    create_topic(raw, name)
    before = topic_id(raw, name)
    assert partitions(enter(raw, group, "m", subscribed_topic_names=[name])) == [(before, [0])]
    delete_topic(raw, name)
    create_topic(raw, name)
    after = topic_id(raw, name)
    told = beat(raw, group, "m", 1, topic_partitions=owned(before, 0))
    assert partitions(told) == []
    assert partitions(beat(raw, group, "m", 1, topic_partitions=[])) == [(after, [0])]


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_are_described(raw: RawConnection, group: str, version: int) -> None:
    enter(raw, group, "a", instance_id="one", rack_id="r", subscribed_topic_regex="t.*")
    join(raw, group, version=5)
    found, absent, nameless = describe_consumer(raw, group, "absent", "", version=version)
    assert (found.error_code, found.group_state) == (0, "Reconciling")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (2, 2, "range")
    newer, older = sorted(found.members, key=lambda member: member.member_id != "a")
    assert (newer.instance_id, newer.rack_id, newer.member_epoch) == ("one", "r", 1)
    assert (newer.subscribed_topic_names, newer.subscribed_topic_regex) == (["t"], "t.*")
    (now,), (target,) = newer.assignment.topic_partitions, newer.target_assignment.topic_partitions
    assert (now.topic_name, now.partitions, target.partitions) == ("t", [0, 1], [0])
    assert (newer.client_id, newer.client_host) == ("raw", "/127.0.0.1")
    if version:
        assert (newer.member_type, older.member_type) == (1, 0)
    assert absent.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    assert describe(raw, group, 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe(raw, group, 5).group_state == "Dead"


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_with_their_type_and_state(
    raw: RawConnection, group: str, version: int
) -> None:
    enter(raw, group)

    def listed(**filters: Any) -> dict[str, Any]:
        found = raw.ask(ListGroupsRequest(**filters), version)
        return {item.group_id: item for item in found.groups}

    assert listed()[group].protocol_type == "consumer"
    if version >= 4:
        assert listed()[group].group_state == "Stable"
        assert group not in listed(states_filter=["Empty", "Assigning"])
        assert group in listed(states_filter=["stable"])
    if version >= 5:
        assert listed()[group].group_type == "Consumer"
        assert group in listed(types_filter=["consumer"])
        assert group not in listed(types_filter=["classic"])


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_are_committed_in_the_members_epoch(
    raw: RawConnection, group: str, version: int
) -> None:
    enter(raw, group)
    right = commit(raw, group, version=version, generation=1, member_id="m")
    assert right == (ErrorCode.UNSUPPORTED_VERSION if version < 9 else ErrorCode.NONE)
    if version >= 9:
        stale = commit(raw, group, version=version, generation=0, member_id="m")
        assert stale == ErrorCode.STALE_MEMBER_EPOCH
    stranger = commit(raw, group, version=version, generation=1, member_id="x")
    assert stranger == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(raw, group, version=version) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [9, 10])
def test_offsets_are_fetched_in_the_members_epoch(
    raw: RawConnection, group: str, version: int
) -> None:
    enter(raw, group)
    commit(raw, group, generation=1, member_id="m")

    def fetch(member_id: str | None, epoch: int) -> Any:
        wanted = OffsetFetchRequestGroup(
            group_id=group, member_id=member_id, member_epoch=epoch, topics=None
        )
        return raw.ask(OffsetFetchRequest(groups=[wanted]), version).groups[0]

    for asked in (fetch("m", 1), fetch(None, -1)):
        assert asked.error_code == ErrorCode.NONE
        assert asked.topics[0].partitions[0].committed_offset == 5
    assert fetch("m", 0).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_what_is_in_use_is_not_deleted(raw: RawConnection, group: str) -> None:
    enter(raw, group)
    commit(raw, group, generation=1, member_id="m")
    wanted = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    answer = raw.ask(OffsetDeleteRequest(group_id=group, topics=[wanted]), 0)
    (found,) = answer.topics[0].partitions
    assert found.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    request = DeleteGroupsRequest(groups_names=[group])
    assert raw.ask(request, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(raw, group, "m", -1)
    assert raw.ask(request, 2).results[0].error_code == ErrorCode.NONE
    assert describe_consumer(raw, group)[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(10))
def test_members_of_the_older_protocol_join_in_every_version(
    raw: RawConnection, group: str, version: int
) -> None:
    topic = topic_id(raw, "t")
    enter(raw, group, "a")
    joined = join(raw, group, version)
    assert (joined.error_code, joined.generation_id) == (0, 2), joined
    assert (joined.protocol_name, joined.members) == ("range", [])
    assert joined.leader != joined.member_id
    synced = sync(raw, group, joined)
    assert parse_assignment(synced.assignment) == {}
    beat(raw, group, "a", 1, topic_partitions=owned(topic, 0, 1))
    beat(raw, group, "a", 1, topic_partitions=owned(topic, 0))
    again = join(raw, group, version, joined.member_id)
    synced = sync(raw, group, again)
    assert parse_assignment(synced.assignment) == {"t": [1]}
