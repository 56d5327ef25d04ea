"""Requests about groups in every version, byte by byte: what clients rely on and rarely say."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from compat.adapter import wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import batch, broker_setting, create_topic, produce, topic_id
from fakes.group_members import subscription
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.classic_groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.coordination import FindCoordinatorRequest
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
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState

JOIN_VERSIONS: Final = range(10)
COMMIT_VERSIONS: Final = range(2, 11)
FETCH_VERSIONS: Final = range(1, 11)

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("requests") / "data",
        {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "3",
            "group.max.size": "2",
        },
    )
    served.start()
    with connected(served.address) as raw:
        create_topic(raw, "t", 2)
        find(raw, "any")
    yield served
    served.stop()


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


def _is_loaded(raw: RawConnection, group: str) -> bool:
    return bool(describe(raw, group).error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def find(raw: RawConnection, *keys: str, key_type: int = 0, version: int = 6) -> Any:
    """Asks until the coordinator has read its log, as clients do."""
    request = FindCoordinatorRequest(key=keys[0], key_type=key_type, coordinator_keys=list(keys))
    answer = raw.ask(request, version)
    for key in keys:
        wait_until(partial(_is_loaded, raw, key), f"the coordinator of {key} has read its log")
    return answer


def join(raw: RawConnection, group: str, version: int = 9, member_id: str = "", **more: Any) -> Any:
    """Join as a client does, coming back with the id it is given."""
    answer = raw.ask(_join(group, member_id, **more), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = raw.ask(_join(group, answer.member_id, **more), version)
    return answer


def _join(group: str, member_id: str, **more: Any) -> JoinGroupRequest:
    given = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
        **more,
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **given)


def sync(raw: RawConnection, group: str, joined: Any, version: int = 5) -> Any:
    assignments = [
        SyncGroupRequestAssignment(member_id=m.member_id, assignment=m.member_id.encode())
        for m in joined.members
    ]
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    return raw.ask(request, version)


def describe(raw: RawConnection, group: str, version: int = 5) -> Any:
    return raw.ask(DescribeGroupsRequest(groups=[group]), version).groups[0]


def commit(
    raw: RawConnection,
    group: str,
    offset: int = 5,
    *,
    version: int = 9,
    topic: str = "t",
    partition: int = 0,
    generation: int = -1,
    member_id: str = "",
    metadata: str | None = "m",
    uuid: Uuid | None = None,
) -> int:
    item = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    wanted = OffsetCommitRequestTopic(name=topic, partitions=[item])
    if version >= 10:
        wanted.topic_id = uuid or topic_id(raw, topic)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[wanted],
    )
    (answered,) = raw.ask(request, version).topics
    (answer,) = answered.partitions
    assert answer.partition_index == partition
    assert answered.name == topic or version >= 10
    return int(answer.error_code)


def fetch(raw: RawConnection, group: str, *partitions: int, version: int = 9) -> dict[int, int]:
    """Offsets by partition of t; without partitions, all that the group has."""
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=list(partitions))]
        answer = raw.ask(
            OffsetFetchRequest(group_id=group, topics=topics if partitions else None), version
        )
    else:
        wanted = OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))
        if version >= 10:
            wanted.topic_id = topic_id(raw, "t")
        asked = OffsetFetchRequestGroup(group_id=group, topics=[wanted] if partitions else None)
        (answer,) = raw.ask(OffsetFetchRequest(groups=[asked]), version).groups
        assert answer.group_id == group
    assert answer.error_code == ErrorCode.NONE
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            assert partition.error_code == ErrorCode.NONE
            found[partition.partition_index] = partition.committed_offset
    return found


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_found(
    raw: RawConnection, broker: ServedBroker, group: str, version: int
) -> None:
    answer = find(raw, group, version=version)
    if version >= 4:
        (answer,) = answer.coordinators
        assert answer.key == group
    assert answer.error_code == ErrorCode.NONE
    assert f"{answer.host}:{answer.port}" == broker.address


def test_several_coordinators_are_found_at_once(raw: RawConnection) -> None:
    found = find(raw, "a", "b", "c").coordinators
    assert [one.key for one in found] == ["a", "b", "c"]
    assert {one.error_code for one in found} == {ErrorCode.NONE}


@pytest.mark.parametrize("key_type", [2, 9])
@pytest.mark.parametrize("version", [1, 3, 6])
def test_other_keys_are_refused_for_good(raw: RawConnection, version: int, key_type: int) -> None:
    answer = find(raw, "x", version=version, key_type=key_type)
    if version >= 4:
        (answer,) = answer.coordinators
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_a_member_lives_in_every_version(raw: RawConnection, group: str, version: int) -> None:
    joined = join(raw, group, version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [m.metadata for m in joined.members] == [subscription("t")]
    synced = sync(raw, group, joined, min(version, 5))
    assert synced.error_code == ErrorCode.NONE
    assert synced.assignment == joined.member_id.encode()
    beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=joined.member_id)
    assert raw.ask(beat, min(version, 4)).error_code == ErrorCode.NONE
    leave = LeaveGroupRequest(
        group_id=group,
        member_id=joined.member_id,
        members=[MemberIdentity(member_id=joined.member_id), MemberIdentity(member_id="nobody")],
    )
    left = raw.ask(leave, min(version, 5))
    assert left.error_code == ErrorCode.NONE
    if version >= 3:
        assert [m.error_code for m in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_a_refused_join_can_be_read_in_every_version(
    raw: RawConnection, group: str, version: int
) -> None:
    answer = join(raw, group, version, session_timeout_ms=1)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert answer.protocol_name == (None if version >= 7 else "")
    assert join(raw, "", version).error_code == ErrorCode.INVALID_GROUP_ID


def test_a_full_group_takes_no_more(raw: RawConnection, broker: ServedBroker, group: str) -> None:
    sync(raw, group, join(raw, group))
    with connected(broker.address) as second, connected(broker.address) as third:
        first = second.ask(_join(group, ""), 9)
        second.tell(_join(group, first.member_id), 9)
        wait_until(lambda: len(describe(third, group).members) == 2, "both are members")
        assert join(third, group).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_join_whose_connection_is_gone_ends_with_its_session(
    raw: RawConnection, broker: ServedBroker, group: str
) -> None:
    joined = join(raw, group, session_timeout_ms=6000)
    sync(raw, group, joined)
    with connected(broker.address) as second:
        answer = second.ask(_join(group, "", session_timeout_ms=6000), 9)
        second.tell(_join(group, answer.member_id, session_timeout_ms=6000), 9)
        wait_until(lambda: len(describe(raw, group).members) == 2, "both are members")
    again = raw.ask(_join(group, joined.member_id, session_timeout_ms=6000), 9)
    assert len(again.members) == 2, "until then, it counts"
    assert sync(raw, group, again).error_code == ErrorCode.NONE
    beat = HeartbeatRequest(
        group_id=group, generation_id=again.generation_id, member_id=again.member_id
    )

    def is_alone() -> bool:
        raw.ask(beat, 4)  # to stay a member oneself
        return len(describe(raw, group).members) == 1

    wait_until(is_alone, "the other one's session is over")
    last = raw.ask(_join(group, joined.member_id, session_timeout_ms=6000), 9)
    assert [m.member_id for m in last.members] == [joined.member_id]


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_offsets_are_committed_in_every_version(
    raw: RawConnection, group: str, version: int
) -> None:
    assert commit(raw, group, 7, version=version) == ErrorCode.NONE
    assert fetch(raw, group, 0) == {0: 7}


def test_more_groups_than_allowed_are_refused_and_the_others_go_on(
    raw: RawConnection, group: str
) -> None:
    assert commit(raw, group, 7) == ErrorCode.NONE
    with broker_setting(raw, "max.groups", "1"):
        assert commit(raw, f"{group}-new", 7) == ErrorCode.POLICY_VIOLATION
        assert join(raw, f"{group}-new").error_code == ErrorCode.POLICY_VIOLATION
        assert commit(raw, group, 8) == ErrorCode.NONE
    assert commit(raw, f"{group}-new", 7) == ErrorCode.NONE


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_offsets_are_fetched_in_every_version(raw: RawConnection, group: str, version: int) -> None:
    assert fetch(raw, group, 0, 1, version=version) == {0: -1, 1: -1}, (
        "an unknown group is no error"
    )
    commit(raw, group, 7, partition=1)
    assert fetch(raw, group, 0, 1, version=version) == {0: -1, 1: 7}
    if version >= 2:
        assert fetch(raw, group, version=version) == {1: 7}


def test_metadata_comes_back_with_its_offset(raw: RawConnection, group: str) -> None:
    commit(raw, group, metadata="where I was")
    commit(raw, group, metadata=None, partition=1)
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)
    (answer,) = raw.ask(OffsetFetchRequest(groups=[asked]), 9).groups
    said = {p.partition_index: p.metadata for p in answer.topics[0].partitions}
    assert said == {0: "where I was", 1: ""}
    assert commit(raw, group, metadata="m" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_only_partitions_that_exist_can_be_committed(raw: RawConnection, group: str) -> None:
    assert commit(raw, group, partition=2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(raw, group, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = Uuid(bytes(range(16)))
    assert commit(raw, group, version=10, uuid=unknown) == ErrorCode.UNKNOWN_TOPIC_ID
    wanted = OffsetFetchRequestTopics(topic_id=unknown, partition_indexes=[0, 1])
    asked = OffsetFetchRequestGroup(group_id=group, topics=[wanted])
    (answer,) = raw.ask(OffsetFetchRequest(groups=[asked]), 10).groups
    codes = [p.error_code for p in answer.topics[0].partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_only_members_commit_for_a_group_that_has_some(raw: RawConnection, group: str) -> None:
    joined = join(raw, group)
    member = {"member_id": joined.member_id, "generation": 1}
    assert commit(raw, group, **member) == ErrorCode.REBALANCE_IN_PROGRESS
    sync(raw, group, joined)
    assert commit(raw, group, **member) == ErrorCode.NONE
    assert commit(raw, group) == ErrorCode.UNKNOWN_MEMBER_ID
    member["generation"] = 2
    assert commit(raw, group, **member) == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_an_unknown_group_is_refused(
    raw: RawConnection, group: str, version: int, code: ErrorCode
) -> None:
    assert commit(raw, group, version=version, generation=1, member_id="m") == code


def test_offsets_of_several_groups_are_fetched_at_once(raw: RawConnection, group: str) -> None:
    commit(raw, group, 3)
    groups = [OffsetFetchRequestGroup(group_id=g, topics=None) for g in (group, "unknown")]
    answers = raw.ask(OffsetFetchRequest(groups=groups, require_stable=True), 9).groups
    assert [(a.group_id, len(a.topics)) for a in answers] == [(group, 1), ("unknown", 0)]


def test_offsets_are_deleted_unless_they_are_in_use(raw: RawConnection, group: str) -> None:
    def delete() -> Any:
        partitions = [OffsetDeleteRequestPartition(partition_index=i) for i in (0, 1)]
        topic = OffsetDeleteRequestTopic(name="t", partitions=partitions)
        return raw.ask(OffsetDeleteRequest(group_id=group, topics=[topic]), 0)

    assert delete().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    commit(raw, group)
    sync(raw, group, join(raw, group))
    codes = [p.error_code for p in delete().topics[0].partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2
    leave = LeaveGroupRequest(
        group_id=group,
        members=[MemberIdentity(member_id=describe(raw, group).members[0].member_id)],
    )
    raw.ask(leave, 5)
    assert [p.error_code for p in delete().topics[0].partitions] == [ErrorCode.NONE] * 2
    assert fetch(raw, group, 0) == {0: -1}


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(
    raw: RawConnection, group: str, version: int
) -> None:
    absent = describe(raw, group, version)
    assert (absent.group_id, absent.group_state) == (group, "Dead")
    assert absent.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    joined = join(raw, group)
    sync(raw, group, joined)
    found = describe(raw, group, version)
    assert (found.group_state, found.protocol_type) == ("Stable", "consumer")
    assert found.protocol_data == "range"
    (member,) = found.members
    assert member.member_id == joined.member_id
    assert member.client_host == "/127.0.0.1"
    assert member.member_metadata == subscription("t")
    assert member.member_assignment == joined.member_id.encode()


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(raw: RawConnection, group: str, version: int) -> None:
    def listed(**filters: Any) -> set[str]:
        answer = raw.ask(ListGroupsRequest(**filters), version)
        assert answer.error_code == ErrorCode.NONE
        return {g.group_id for g in answer.groups}

    commit(raw, group)
    busy = f"{group}-busy"
    sync(raw, busy, join(raw, busy))
    assert {group, busy} <= listed()
    if version >= 4:
        assert busy in listed(states_filter=["stable"])
        assert group not in listed(states_filter=["stable"])
        assert {group, busy} <= listed(states_filter=["Empty", "Stable"])
    if version >= 5:
        assert {group, busy} <= listed(types_filter=["classic"])
        assert listed(types_filter=["consumer"]) == set()


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_when_they_are_empty(
    raw: RawConnection, group: str, version: int
) -> None:
    busy, unknown = f"{group}-busy", f"{group}-unknown"
    commit(raw, group)
    join(raw, busy)
    results = raw.ask(DeleteGroupsRequest(groups_names=[group, busy, unknown]), version).results
    assert {r.group_id: r.error_code for r in results} == {
        group: ErrorCode.NONE,
        busy: ErrorCode.NON_EMPTY_GROUP,
        unknown: ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert fetch(raw, group, 0) == {0: -1}


def test_offsets_of_a_deleted_topic_go_with_it(
    raw: RawConnection, group: str, new_name: Callable[[], str]
) -> None:
    doomed = new_name()
    create_topic(raw, doomed)
    assert commit(raw, group, topic=doomed) == ErrorCode.NONE
    assert commit(raw, group) == ErrorCode.NONE
    raw.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=doomed)], timeout_ms=10_000), 6)
    create_topic(raw, doomed)
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)

    def topics() -> list[str]:
        (answer,) = raw.ask(OffsetFetchRequest(groups=[asked]), 9).groups
        return [topic.name for topic in answer.topics]

    wait_until(lambda: topics() == ["t"], "offsets of the deleted topic are gone")


def test_a_coordinator_that_loses_its_partition_lets_its_members_go(tmp_path: Path) -> None:
    """Whoever waits is told to look again, and finds groups made anew."""
    served = ServedBroker(tmp_path / "data", {})
    served.start()
    with connected(served.address) as raw, connected(served.address) as admin:
        find(raw, "g")
        answer = raw.ask(_join("g", ""), 9)
        raw.tell(_join("g", answer.member_id), 9)
        wait_until(lambda: bool(describe(admin, "g").members), "somebody joins")
        topic = DeleteTopicState(name="__consumer_offsets")
        admin.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=10_000), 6)
        assert raw.answer(ApiKey.JOIN_GROUP, 9).error_code == ErrorCode.NOT_COORDINATOR
        assert describe(raw, "g").error_code == ErrorCode.NOT_COORDINATOR
        find(raw, "g")
        assert describe(raw, "g").group_state == "Dead"
        assert raw.ask(_join("g", ""), 9).error_code == ErrorCode.MEMBER_ID_REQUIRED
    served.stop()


def test_a_waiting_join_does_not_keep_the_broker_from_stopping(tmp_path: Path) -> None:
    """It is told to look for another coordinator."""
    served = ServedBroker(tmp_path / "data", {})
    served.start()
    with connected(served.address) as raw:
        find(raw, "g")
        answer = raw.ask(_join("g", ""), 9)
        raw.tell(_join("g", answer.member_id), 9)
        start_s = time.monotonic()
        served.stop()
        assert raw.answer(ApiKey.JOIN_GROUP, 9).error_code == ErrorCode.NOT_COORDINATOR
        assert time.monotonic() - start_s < 3, "it did not wait for the initial delay or the drain"


def test_only_brokers_write_to_the_groups_topic(broker: ServedBroker) -> None:
    with connected(broker.address) as raw:
        by_name = produce(raw, "__consumer_offsets", batch(b"x"))
        by_id = produce(raw, topic_id(raw, "__consumer_offsets"), batch(b"x"), version=13)
        assert by_name.error_code == by_id.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert produce(raw, "t", batch(b"x")).error_code == ErrorCode.NONE


def test_the_groups_topic_is_made_as_kafka_makes_it(broker: ServedBroker) -> None:
    with connected(broker.address) as raw:
        wanted = DescribeConfigsResource(
            resource_type=2, resource_name="__consumer_offsets", configuration_keys=None
        )
        (found,) = raw.ask(DescribeConfigsRequest(resources=[wanted]), 4).results
        settings = {one.name: one.value for one in found.configs}
    assert settings["cleanup.policy"] == "compact"
    assert settings["compression.type"] == "producer"
    assert settings["segment.bytes"] == str(100 << 20)
