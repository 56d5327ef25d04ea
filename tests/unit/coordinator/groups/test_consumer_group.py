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
    MemberDropped,
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


def test_a_member_that_missed_a_response_goes_on_with_what_it_had_and_nothing_else(
    group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    joined = beat(group, JOIN)
    assert joined.assigned == catalog.all_of("t")
    beat(group, replace(JOIN, member_id="other"))
    one, other = sorted(catalog.all_of("t"))
    moved = beat(group, ConsumerHeartbeat(member_id="m", epoch=joined.epoch, owned=joined.assigned))
    assert moved.assigned is not None
    (kept,) = moved.assigned
    lost = other if kept == one else one
    after = beat(group, ConsumerHeartbeat(member_id="m", epoch=1, owned=frozenset({kept})))
    assert after.epoch == 2
    for owned in (None, frozenset({kept, lost}), frozenset({lost})):
        refused = beat(group, ConsumerHeartbeat(member_id="m", epoch=1, owned=owned))
        assert refused.error is ErrorCode.FENCED_MEMBER_EPOCH
    again = beat(group, ConsumerHeartbeat(member_id="m", epoch=1, owned=frozenset({kept})))
    assert (again.error, again.epoch) == (ErrorCode.NONE, 2)


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


def join_classic(group: ConsumerGroup, now_ms: int = 0, **more: object) -> Joined:
    answer = only(group.join(FakeTicket(1), group_members.join(**more), now_ms))  # type: ignore[arg-type]
    assert isinstance(answer, Joined)
    return answer


def test_a_new_classic_member_comes_back_with_the_id_that_it_was_given(
    group: ConsumerGroup,
) -> None:
    required = join_classic(group, version=4)
    assert required.error is ErrorCode.MEMBER_ID_REQUIRED
    assert required.member_id.startswith("c-")
    assert group.members == {}
    assert join_classic(group, member_id=required.member_id).error is ErrorCode.NONE
    assert list(group.members) == [required.member_id]


def test_a_static_classic_member_joins_again_under_its_id_and_no_other_does(
    group: ConsumerGroup,
) -> None:
    first = join_classic(group, instance_id="i")
    again = join_classic(group, member_id=first.member_id, instance_id="i")
    assert (again.error, again.member_id) == (ErrorCode.NONE, first.member_id)
    stranger = join_classic(group, member_id="other", instance_id="i")
    assert stranger.error is ErrorCode.FENCED_INSTANCE_ID
    unknown = join_classic(group, member_id=first.member_id, instance_id="j")
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(group.members) == [first.member_id]


def test_a_classic_member_that_syncs_with_an_old_assignment_has_to_join_again(
    group: ConsumerGroup,
) -> None:
    member_id = join_classic(group, version=3, rebalance_ms=7000).member_id
    synced = only(group.sync(FakeTicket(1), group_members.sync(member_id, 1), 0))
    assert isinstance(synced, Synced)
    assert synced.error is ErrorCode.NONE
    beat(group, JOIN)  # another member: the assignment changes
    synced = only(group.sync(FakeTicket(1), group_members.sync(member_id, 1), 1000))
    assert synced == Synced(error=ErrorCode.REBALANCE_IN_PROGRESS)
    group.touch(member_id, 7999)
    group.touch("m", 7999)
    assert group.pass_time(7999).records == ()
    assert group.pass_time(8000).records, "it has not joined in time"
    assert member_id not in group.members


def test_a_member_of_which_the_log_has_nothing_else_is_dropped_alone(group: ConsumerGroup) -> None:
    group.replay(MemberStored(group_id="g", member_id="m", topics=("t",)), 0)
    gone = beat(group, ConsumerHeartbeat(member_id="m", epoch=-1))
    assert gone.error is ErrorCode.NONE
    group.replay(MemberStored(group_id="g", member_id="n", topics=("t",)), 0)
    decision = group.consumer_heartbeat(
        FakeTicket(1), ConsumerHeartbeat(member_id="n", epoch=-1), 0
    )
    assert [type(record) for record in decision.records] == [MemberDropped, EpochSet]


def test_the_time_to_give_up_partitions_runs_from_the_first_record_of_it(
    group: ConsumerGroup, catalog: TopicCatalog
) -> None:
    group.replay(MemberStored(group_id="g", member_id="m", rebalance_timeout_ms=5000), 0)
    revoking = CurrentSet(
        group_id="g",
        member_id="m",
        epoch=3,
        state=MemberState.UNREVOKED,
        revoking=frozenset({catalog.partition("t", 0)}),
    )
    group.replay(revoking, 100)
    group.replay(replace(revoking, previous_epoch=2), 900)
    assert group.next_deadline_ms() == 5100
    group.replay(replace(revoking, epoch=4), 900)
    assert group.next_deadline_ms() == 5900, "in another epoch it has to give up more"
    group.replay(replace(revoking, state=MemberState.STABLE), 900)
    assert group.next_deadline_ms() == 10_000, "only its session is left"
