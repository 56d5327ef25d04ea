"""Requests of share groups: what clients rely on, and what no well-behaved one would send."""

import asyncio
import signal
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest

from compat.adapter import wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.share_wire import RawMember, partitions, set_group, values
from compat.test_group_requests import find
from compat.wire import batch, create_topic, delete_topic, produce
from ottla.broker.partition_retirement import read_positions
from ottla.client.client import Client
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.model import Endpoint, Offset, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.classic_groups import DeleteGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.messages.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from ottla.records.batch import Record, build_batch

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
STRICT: Final = 1
NOTHING: Final[dict[str, Any]] = {
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 0,
    "max_records": 0,
}
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("share") / "data",
        {
            "offsets.topic.num.partitions": "3",
            "share.coordinator.state.topic.num.partitions": "3",
            "group.share.max.size": "2",
            "group.share.max.share.sessions": "20",
        },
    )
    served.start()
    with connected(served.address) as raw:
        find(raw, "any")
    yield served
    served.stop()


@pytest.fixture
def topic(raw: RawConnection) -> str:
    name = f"jobs-{next(_numbers)}"
    create_topic(raw, name)
    return name


@pytest.fixture
def group(raw: RawConnection, topic: str) -> str:
    """A group that reads from the beginning."""
    name = f"group-of-{topic}"
    set_group(raw, name, share_auto_offset_reset="earliest")
    return name


@pytest.fixture
def member(raw: RawConnection, group: str, topic: str) -> RawMember:
    made = RawMember(raw, group, "m", topic)
    made.join()
    return made


def put(raw: RawConnection, topic: str, *numbers: int) -> None:
    """One batch of records."""
    answer = produce(raw, topic, batch(*(b"%d" % number for number in numbers)))
    assert not answer.error_code, answer


def offsets_of(raw: RawConnection, group: str) -> list[tuple[int, int]]:
    """Start offset and lag of each partition."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (found,) = raw.ask(DescribeShareGroupOffsetsRequest(groups=[wanted]), 1).groups
    assert not found.error_code, found
    return [(p.start_offset, p.lag) for topic in found.topics for p in topic.partitions]


def test_the_feature_and_its_requests_are_listed(raw: RawConnection) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = raw.ask(request, 4)
    assert ("share.version", 1) in {
        (one.name, one.max_version_level) for one in answer.finalized_features
    }
    listed = {one.api_key for one in answer.api_keys}
    assert {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE, ApiKey.SHARE_GROUP_HEARTBEAT} <= listed
    assert set(range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 88)) <= listed, "to other brokers"


# Heartbeats


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"group_id": "no-such-group", "member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": 77}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_id": "stranger", "member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_wrong_heartbeat_is_refused(
    raw: RawConnection, member: RawMember, fields: dict[str, Any], error: ErrorCode
) -> None:
    right: dict[str, Any] = {
        "group_id": member.group,
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": [member.topic],
    }
    answer = raw.ask(ShareGroupHeartbeatRequest(**(right | fields)), 1)
    assert answer.error_code == error, answer


def test_members_share_partitions_and_a_full_group_takes_no_more(
    raw: RawConnection, member: RawMember
) -> None:
    second = RawMember(raw, member.group, "n", member.topic)
    answer = second.beat()
    assert answer.heartbeat_interval_ms == 5000
    (assigned,) = answer.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (member.topic_id, [0])
    third = RawMember(raw, member.group, "o", member.topic)
    assert third.beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    epoch = member.beat(1).member_epoch
    assert epoch == answer.member_epoch
    assert member.beat(epoch).assignment is None  # unchanged
    assert second.beat(-1).member_epoch == -1


def test_a_share_group_is_listed_described_and_deleted_when_it_is_empty(
    raw: RawConnection, member: RawMember
) -> None:
    listed = raw.ask(ListGroupsRequest(types_filter=["share"]), 5).groups
    assert ("Share", "Stable") in {
        (one.group_type, one.group_state) for one in listed if one.group_id == member.group
    }
    (described,) = raw.ask(ShareGroupDescribeRequest(group_ids=[member.group]), 1).groups
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    (one,) = described.members
    assert (one.member_id, one.subscribed_topic_names) == ("m", [member.topic])
    assert one.assignment.topic_partitions[0].partitions == [0]

    def delete() -> int:
        (result,) = raw.ask(DeleteGroupsRequest(groups_names=[member.group]), 2).results
        return int(result.error_code)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    member.beat(-1)
    assert delete() == 0
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    (described,) = raw.ask(ShareGroupDescribeRequest(group_ids=[member.group]), 1).groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Fetching and acknowledging


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_acquired_and_acknowledged_once(
    raw: RawConnection, member: RawMember, version: int
) -> None:
    put(raw, member.topic, 1, 2, 3)
    answer = member.fetch(version=version)
    assert values(answer) == [b"1", b"2", b"3"]
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert offsets_of(raw, member.group) == [(0, 3)]
    assert member.acknowledge((0, 2, [ACCEPT])) == 0
    assert offsets_of(raw, member.group) == [(3, 0)]
    assert member.acknowledge((0, 2, [ACCEPT])) == 0  # below the start offset: ignored


def test_acknowledgements_travel_with_the_next_fetch(raw: RawConnection, member: RawMember) -> None:
    put(raw, member.topic, 1, 2)
    assert member.take() == [(0, 1, 1)]
    (answered,) = partitions(member.fetch(said=[(0, 1, [ACCEPT, RELEASE])]))
    assert (answered.acknowledge_error_code, answered.error_code) == (0, 0)
    (again,) = answered.acquired_records
    assert (again.first_offset, again.delivery_count) == (1, 2)
    wrong = partitions(member.fetch(said=[(0, 99, [ACCEPT])], max_wait_ms=0))
    assert wrong[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST


def test_two_members_never_hold_the_same_record(raw: RawConnection, member: RawMember) -> None:
    other = RawMember(raw, member.group, "n", member.topic)
    for number in range(6):
        put(raw, member.topic, number)
    assert member.take(max_records=4) == [(0, 3, 1)]
    assert other.take() == [(4, 5, 1)]
    assert other.acknowledge((0, 0, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert member.acknowledge((0, 3, [RELEASE])) == 0
    assert other.take() == [(0, 3, 2)]


def test_a_strict_fetch_gets_no_more_than_it_asks_for(
    raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, *range(10))
    assert member.take(max_records=3, share_acquire_mode=STRICT) == [(0, 2, 1)]
    assert member.take(max_records=3) == [(3, 9, 1)]  # the rest of the batch as a whole


def test_a_rejected_record_is_never_delivered_again(raw: RawConnection, member: RawMember) -> None:
    put(raw, member.topic, 1, 2)
    member.take()
    assert member.acknowledge((0, 1, [REJECT, RELEASE])) == 0
    assert member.take() == [(1, 1, 2)]


def test_a_record_is_delivered_as_often_as_the_group_allows(
    raw: RawConnection, member: RawMember
) -> None:
    set_group(raw, member.group, share_delivery_count_limit="3")
    put(raw, member.topic, 1, 2)
    assert member.take() == [(0, 1, 1)]
    assert member.take(said=[(0, 1, [RELEASE])]) == [(0, 1, 2)]
    assert member.take(said=[(0, 1, [RELEASE])]) == [(0, 0, 3)]  # the last time each alone
    assert member.take(said=[(0, 0, [RELEASE])]) == [(1, 1, 3)]
    assert member.take(said=[(1, 1, [RELEASE])], max_wait_ms=0) == []
    assert offsets_of(raw, member.group) == [(2, 0)]


def test_a_renewed_record_stays_with_its_member(raw: RawConnection, member: RawMember) -> None:
    put(raw, member.topic, 1)
    member.take()
    assert member.acknowledge((0, 0, [RENEW])) == ErrorCode.INVALID_REQUEST
    assert member.acknowledge((0, 0, [RENEW]), is_renew_ack=True) == 0
    wrong = member.fetch(said=[(0, 0, [RENEW])], is_renew_ack=True, epoch=member.epoch)
    assert wrong.error_code == ErrorCode.INVALID_REQUEST
    answer = member.fetch(said=[(0, 0, [RENEW])], is_renew_ack=True, **NOTHING)
    assert partitions(answer)[0].acknowledge_error_code == 0
    set_group(raw, member.group, share_renew_acknowledge_enable="false")
    code = member.acknowledge((0, 0, [RENEW]), is_renew_ack=True)
    assert code == ErrorCode.INVALID_REQUEST
    assert member.acknowledge((0, 0, [ACCEPT])) == 0


def test_a_fetch_that_waits_gets_what_is_produced(
    broker: ServedBroker, raw: RawConnection, member: RawMember
) -> None:
    assert member.take(max_wait_ms=0) == []
    raw.tell(member.fetch_request(max_wait_ms=60_000), 2)
    with connected(broker.address) as other:
        put(other, member.topic, 7)
    assert values(raw.answer(ApiKey.SHARE_FETCH, 2)) == [b"7"]


def test_a_fetch_that_waits_gets_what_another_member_gives_back(
    broker: ServedBroker, raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, 7)
    with connected(broker.address) as elsewhere:
        other = RawMember(elsewhere, member.group, "n", member.topic)
        assert other.take() == [(0, 0, 1)]
        assert member.take(max_wait_ms=0) == []
        raw.tell(member.fetch_request(max_wait_ms=60_000), 2)
        assert other.acknowledge((0, 0, [RELEASE])) == 0
        assert values(raw.answer(ApiKey.SHARE_FETCH, 2)) == [b"7"]


def test_an_acknowledgement_does_not_wait_behind_a_long_poll(
    raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, 1)
    member.take()
    raw.tell(member.fetch_request(max_wait_ms=3_600_000), 2)
    raw.tell(member.acknowledge_request([(0, 0, [ACCEPT])]), 2)
    assert partitions(raw.answer(ApiKey.SHARE_FETCH, 2)) == []
    answer = raw.answer(ApiKey.SHARE_ACKNOWLEDGE, 2)
    assert answer.responses[0].partitions[0].error_code == 0


def test_metrics_show_who_reads_and_what_is_left(
    broker: ServedBroker, raw: RawConnection, member: RawMember
) -> None:
    acquired = "ottla_share_records_acquired_total"
    member.take(max_wait_ms=100)
    before = broker.metric(acquired)
    for number in range(3):
        put(raw, member.topic, number)
    assert member.take(max_records=1) == [(0, 0, 1)]
    assert member.acknowledge((0, 0, [ACCEPT])) == 0
    assert member.take(max_records=1) == [(1, 1, 1)]
    assert broker.metric(acquired) == before + 2
    assert broker.metric("ottla_share_sessions") >= 1
    assert broker.metric("ottla_share_partitions") >= 1
    labels = {"group": member.group, "topic": member.topic}
    assert broker.metric("ottla_share_group_lag", **labels) == 2


# Sessions


def test_the_epochs_of_a_session_are_counted(raw: RawConnection, member: RawMember) -> None:
    assert member.fetch(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    answer = member.fetch(epoch=0, said=[(0, 0, [ACCEPT])])
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert member.acknowledge(epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=0, max_wait_ms=0).error_code == 0
    assert member.fetch(epoch=2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=1, max_wait_ms=0).error_code == 0
    assert member.acknowledge(epoch=2) == 0
    assert member.acknowledge(epoch=-1) == 0
    assert member.acknowledge(epoch=3) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_partition_that_was_forgotten_is_not_fetched(
    raw: RawConnection, member: RawMember
) -> None:
    assert member.take(max_wait_ms=0) == []
    put(raw, member.topic, 1)
    assert partitions(member.fetch(forget=True, max_wait_ms=0)) == []
    assert member.take() == [(0, 0, 1)]


def test_what_was_acquired_can_be_acknowledged_after_its_partition_was_forgotten(
    raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, 1, 2)
    assert member.take() == [(0, 1, 1)]
    assert member.take(forget=True, max_wait_ms=0) == []
    assert member.acknowledge((0, 1, [1])) == 0
    assert offsets_of(raw, member.group) == [(2, 0)]


def test_a_partition_is_read_when_its_share_groups_have_finished_it(
    broker: ServedBroker, raw: RawConnection, member: RawMember
) -> None:
    def positions() -> list[Offset | None]:
        async def find() -> list[Offset | None]:
            host, port = broker.address.split(":")
            async with Client([Endpoint(host, int(port))], client_id="t") as client:
                return await read_positions(client, TopicPartition(member.topic, 0))

        return asyncio.run(find())

    put(raw, member.topic, 1, 2)
    assert member.take() == [(0, 1, 1)]
    assert positions() == [None]
    assert member.acknowledge((0, 1, [1])) == 0
    assert positions() == [2]


def test_there_are_no_more_sessions_than_allowed(broker: ServedBroker, member: RawMember) -> None:
    with connected(broker.address) as raw:
        codes = [
            RawMember(raw, member.group, f"m{number}", member.topic).fetch(max_wait_ms=0).error_code
            for number in range(21)
        ]
        assert codes[-1] == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert codes[0] == 0
    wait_until(
        lambda: member.fetch(epoch=0, max_wait_ms=0).error_code == 0,
        "sessions end with connections",
    )


def test_a_closed_session_gives_records_back_as_if_they_had_not_been_delivered(
    raw: RawConnection, member: RawMember
) -> None:
    other = RawMember(raw, member.group, "n", member.topic)
    put(raw, member.topic, 1, 2, 3)
    assert member.take() == [(0, 2, 1)]
    assert member.acknowledge((0, 0, [ACCEPT]), epoch=-1) == 0
    assert other.take() == [(1, 2, 1)]


def test_a_lost_connection_gives_records_back_and_the_delivery_counts(
    broker: ServedBroker, raw: RawConnection, member: RawMember
) -> None:
    set_group(raw, member.group, share_record_lock_duration_ms="60000")
    put(raw, member.topic, 1)
    with connected(broker.address) as elsewhere:
        other = RawMember(elsewhere, member.group, "n", member.topic)
        assert other.take() == [(0, 0, 1)]
    assert member.take(max_wait_ms=45_000) == [(0, 0, 2)]  # before its lock would end


# Where a group begins


def test_a_group_begins_with_what_comes_after_its_first_fetch_and_does_not_forget_that(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    put(raw, topic, 1)
    member = RawMember(raw, f"latest-{topic}", "m", topic)
    member.join()
    assert member.take(max_wait_ms=100) == []
    wait_until(lambda: offsets_of(raw, member.group) == [(1, 0)], "its start is decided")
    put(raw, topic, 2)
    assert offsets_of(raw, member.group) == [(1, 1)]
    assert member.acknowledge(epoch=-1) == 0  # the state is read again
    member.epoch = 0
    assert member.take() == [(1, 1, 1)]


def test_a_group_can_begin_some_time_ago(raw: RawConnection, topic: str) -> None:
    now_ms = SystemClock().now_ms()
    for age_ms in (7_200_000, 0):
        record = Record(value=b"x", timestamp_ms=TimestampMs(now_ms - age_ms))
        assert not produce(raw, topic, bytes(build_batch([record]))).error_code
    member = RawMember(raw, f"ago-{topic}", "m", topic)
    set_group(raw, member.group, share_auto_offset_reset="by_duration:PT1H")
    member.join()
    assert member.take() == [(1, 1, 1)]


# Offsets


def test_start_offsets_are_changed_while_the_group_is_empty(
    raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, *range(5))
    member.take(share_acquire_mode=STRICT, max_records=2)
    partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=3)
    missing = AlterShareGroupOffsetsRequestPartition(partition_index=9, start_offset=3)
    topic = AlterShareGroupOffsetsRequestTopic(
        topic_name=member.topic, partitions=[partition, missing]
    )
    request = AlterShareGroupOffsetsRequest(group_id=member.group, topics=[topic])
    assert raw.ask(request, 0).error_code == ErrorCode.NON_EMPTY_GROUP
    member.beat(-1)
    answer = raw.ask(request, 0)
    assert answer.error_code == 0, answer
    assert [p.error_code for p in answer.responses[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert offsets_of(raw, member.group) == [(3, 2)]
    member.join()
    member.epoch = 0
    assert member.take() == [(3, 4, 1)]


def test_offsets_of_a_topic_are_deleted_and_the_group_begins_anew(
    raw: RawConnection, member: RawMember
) -> None:
    put(raw, member.topic, 1)
    member.take()
    assert member.acknowledge((0, 0, [ACCEPT]), epoch=-1) == 0
    names = [member.topic, "no-such-topic"]
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    request = DeleteShareGroupOffsetsRequest(group_id=member.group, topics=topics)
    assert raw.ask(request, 0).error_code == ErrorCode.NON_EMPTY_GROUP
    member.beat(-1)
    answer = raw.ask(request, 0)
    codes = [(one.topic_name, one.error_code) for one in answer.responses]
    assert codes == [(member.topic, 0), ("no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert offsets_of(raw, member.group) == []
    member.join()
    member.epoch = 0
    assert member.take() == [(0, 0, 1)]


# Topics, restarts


def test_a_topic_that_is_made_anew_is_another_one(raw: RawConnection, member: RawMember) -> None:
    put(raw, member.topic, 1)
    assert member.take() == [(0, 0, 1)]
    delete_topic(raw, member.topic)
    wait_until(
        lambda: partitions(member.fetch(max_wait_ms=0))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID,
        "the topic is gone",
    )
    create_topic(raw, member.topic)
    anew = RawMember(raw, member.group, "n", member.topic)
    anew.join()
    put(raw, member.topic, 2)
    assert values(anew.fetch()) == [b"2"]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_acknowledged_stays_so_through_stops_and_kills(
    broker: ServedBroker, topic: str, group: str, ending: signal.Signals
) -> None:
    with connected(broker.address) as raw:
        member = RawMember(raw, group, "m", topic)
        member.join()
        for number in range(4):
            put(raw, topic, number)
        assert member.take() == [(0, 3, 1)]
        assert member.acknowledge((0, 3, [ACCEPT, RELEASE, ACCEPT, REJECT])) == 0
        assert member.take() == [(1, 1, 2)]
    broker.end(ending)
    broker.start()
    with connected(broker.address) as raw:
        find(raw, group)
        again = RawMember(raw, group, "m", topic)
        again.join()
        assert [a[:2] for a in again.take(max_wait_ms=60_000)] == [(1, 1)]
        assert again.acknowledge((1, 1, [ACCEPT])) == 0
        assert offsets_of(raw, group) == [(4, 0)]
