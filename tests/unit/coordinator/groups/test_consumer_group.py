"""A consumer group: what the text scenarios do not show."""

from dataclasses import replace
from itertools import count

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.consumer_records import (
    ConsumerRecord,
    CurrentSet,
    EpochSet,
    MemberState,
    MemberStored,
    PatternResolved,
    TargetEpochSet,
)
from ottla.coordinator.groups.records import GroupDecision
from ottla.errors import ErrorCode
from ottla.model import TimestampMs

JOIN = ConsumerHeartbeat(
    member_id="m",
    epoch=0,
    rebalance_timeout_ms=5000,
    topics=frozenset({"t"}),
    owned=frozenset(),
)


@pytest.fixture
def catalog() -> TopicCatalog:
    return TopicCatalog(t=2)


@pytest.fixture
def group(catalog: TopicCatalog) -> ConsumerGroup:
    ids = count(1)
    limits = ConsumerLimits(session_timeout_ms=10_000)
    return ConsumerGroup("g", lambda: limits, lambda: catalog.image, lambda: str(next(ids)))


def only(decision: GroupDecision) -> object:
    ((_, answer),) = decision.responses
    return answer


def beat(group: ConsumerGroup, beat: ConsumerHeartbeat, now_ms: int = 0) -> ConsumerHeartbeatResult:
    answer = only(group.consumer_heartbeat(FakeTicket(1), beat, now_ms))
    assert isinstance(answer, ConsumerHeartbeatResult)
    return answer


def test_a_member_in_a_state_that_comes_later_has_to_join_with_nothing(
    group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    stored: list[ConsumerRecord] = [
        MemberStored(group_id="g", member_id="m", topics=("t",), rebalance_timeout_ms=5),
        EpochSet(group_id="g", epoch=3),
        TargetEpochSet("g", 3),
        CurrentSet(
            group_id="g",
            member_id="m",
            epoch=3,
            state=MemberState.UNKNOWN,
            assigned=frozenset({catalog.partition("t", 0)}),
        ),
    ]
    for record in stored:
        group.replay(record, 0)
    mine = frozenset({catalog.partition("t", 0)})
    for owned in (None, mine):
        refused = beat(group, ConsumerHeartbeat(member_id="m", epoch=3, owned=owned))
        assert refused.error is ErrorCode.FENCED_MEMBER_EPOCH
    joined = beat(group, JOIN)
    assert (joined.error, joined.assigned) == (ErrorCode.NONE, catalog.all_of("t"))


def test_a_pattern_that_another_version_accepted_keeps_its_topics(
    group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    group.replay(MemberStored(group_id="g", member_id="m", pattern="(?=t)"), 0)
    group.replay(
        PatternResolved(
            group_id="g", pattern="(?=t)", topics=("t",), version=1, resolved_ms=TimestampMs(0)
        ),
        0,
    )
    catalog.create("tt", 1)
    joined = beat(group, replace(JOIN, topics=frozenset(), pattern="(?=t)"))
    assert (joined.error, joined.epoch) == (ErrorCode.NONE, 1)
    assert joined.assigned == catalog.all_of("t")


def test_a_commit_is_a_sign_of_life(group: ConsumerGroup) -> None:
    beat(group, JOIN)
    group.touch("m", 9000)
    assert group.pass_time(18_999).records == ()
    assert group.pass_time(19_000).records
    assert group.state is ConsumerGroupState.EMPTY
    group.touch("m", 20_000)
    assert group.next_deadline_ms() is None


def test_other_client_ids_are_written_down_and_start_nothing(group: ConsumerGroup) -> None:
    beat(group, JOIN)
    decision = group.consumer_heartbeat(
        FakeTicket(1), ConsumerHeartbeat(member_id="m", epoch=1, client_id="renamed"), 0
    )
    assert [type(record) for record in decision.records] == [MemberStored]
    assert group.replayed.epoch == 1


def test_a_member_that_would_not_fit_into_a_record_is_refused(group: ConsumerGroup) -> None:
    limits = ConsumerLimits(classic=GroupLimits(stored_bytes_max=1000))
    group.limits = lambda: limits
    many = frozenset(f"{number:0100}" for number in range(3))
    assert beat(group, replace(JOIN, topics=many)).error is ErrorCode.INVALID_REQUEST
    joined = only(
        group.join(
            FakeTicket(1), group_members.join(protocols={"range": bytes(1001)}, version=3), 0
        )
    )
    assert isinstance(joined, Joined)
    assert joined.error is not ErrorCode.NONE
    assert beat(group, JOIN).error is ErrorCode.NONE


def test_a_member_of_the_older_protocol_needs_metadata_that_consumers_speak(
    group: ConsumerGroup,
) -> None:
    beat(group, JOIN)
    for protocols in ({}, {"range": b"\xff"}):
        joined = only(
            group.join(FakeTicket(1), group_members.join(protocols=protocols, version=3), 0)
        )
        assert isinstance(joined, Joined)
        assert joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_two_protocols_do_not_answer_each_others_members(group: ConsumerGroup) -> None:
    beat(group, JOIN)
    assert group.heartbeat("m", None, 1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    synced = only(group.sync(FakeTicket(1), group_members.sync("m", 1), 0))
    assert synced == Synced(error=ErrorCode.UNKNOWN_MEMBER_ID)
    errors, decision = group.leave([("m", None)], 0)
    assert (errors, decision.records) == ([ErrorCode.UNKNOWN_MEMBER_ID], ())


def test_a_member_that_is_given_a_new_client_of_the_older_protocol_keeps_its_place(
    group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    """An instance restarts with an older configuration while its place is in use."""
    beat(group, replace(JOIN, instance_id="i"))
    joined = only(group.join(FakeTicket(1), group_members.join(instance_id="i", version=5), 0))
    assert isinstance(joined, Joined)
    assert joined.error is ErrorCode.NONE
    assert group.replayed.owners.keys() == catalog.all_of("t")
    gone = beat(group, ConsumerHeartbeat(member_id="m", epoch=1, instance_id="i"))
    assert gone.error is ErrorCode.FENCED_INSTANCE_ID
    assert group.replayed.is_classic_only
