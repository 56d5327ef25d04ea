"""The replayed state of a consumer group: owners, states, and what each record changes."""

import pytest

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.consumer_group_state import ConsumerGroupState, ReplayedGroup
from ottla.coordinator.groups.consumer_records import (
    ClassicPart,
    CurrentDropped,
    CurrentSet,
    EpochSet,
    MemberDropped,
    MemberState,
    MemberStored,
    PatternResolved,
    TargetEpochSet,
)
from ottla.coordinator.groups.topics import Partitions
from ottla.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    UnknownMemberId,
)
from ottla.model import TimestampMs

CATALOG = TopicCatalog(t=2)
P0, P1 = CATALOG.partition("t", 0), CATALOG.partition("t", 1)


@pytest.fixture
def group() -> ReplayedGroup:
    return ReplayedGroup("g")


def member(
    member_id: str, instance_id: str | None = None, *, is_classic: bool = False
) -> MemberStored:
    classic = ClassicPart(6000, (("range", b""),)) if is_classic else None
    return MemberStored(
        group_id="g", member_id=member_id, instance_id=instance_id, topics=("t",), classic=classic
    )


def current(
    member_id: str,
    epoch: int = 1,
    *,
    state: MemberState = MemberState.STABLE,
    assigned: Partitions = frozenset(),
    revoking: Partitions = frozenset(),
) -> CurrentSet:
    return CurrentSet(
        group_id="g",
        member_id=member_id,
        epoch=epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def test_the_state_follows_the_epochs(group: ReplayedGroup) -> None:
    states = [group.state]
    for record in (
        member("a"),
        EpochSet(group_id="g", epoch=1),
        TargetEpochSet("g", 1),
        current("a"),
        MemberDropped("g", "a"),
    ):
        group.replay(record)
        states.append(group.state)
    assert states == [
        ConsumerGroupState.EMPTY,
        ConsumerGroupState.STABLE,
        ConsumerGroupState.ASSIGNING,
        ConsumerGroupState.RECONCILING,
        ConsumerGroupState.STABLE,
        ConsumerGroupState.EMPTY,
    ]


def test_a_partition_has_an_owner_until_it_is_given_up(group: ReplayedGroup) -> None:
    group.replay(current("a", assigned=frozenset({P0, P1})))
    assert not group.is_free(P0, "b")
    assert group.is_free(P0, "a")
    group.replay(
        current(
            "a",
            state=MemberState.UNREVOKED,
            assigned=frozenset({P1}),
            revoking=frozenset({P0}),
        )
    )
    assert not group.is_free(P0, "b"), "the member may still read it"
    assert group.held("a") == {P0, P1}
    group.replay(current("a", 2, assigned=frozenset({P1})))
    assert group.is_free(P0, "b")
    group.replay(CurrentDropped("g", "a"))
    assert group.owners == {}


def test_a_static_member_is_found_by_its_newest_id(group: ReplayedGroup) -> None:
    group.replay(member("old", "i"))
    group.replay(member("new", "i"))
    group.replay(MemberDropped("g", "old"))
    assert group.static == {"i": "new"}
    assert group.find("new", "i").member_id == "new"
    with pytest.raises(FencedInstanceId):
        group.find("old", "i")
    with pytest.raises(UnknownMemberId):
        group.find("new", "other")


def test_a_join_continues_its_member_or_its_instance(group: ReplayedGroup) -> None:
    group.replay(member("a", "i"))
    for member_id, instance_id in (("a", None), ("a", "i"), ("new", "i")):
        found = group.find_joining(member_id, instance_id, 1)
        assert found is not None
        assert found.member_id == "a"
    assert group.find_joining("b", None, 2) is None
    with pytest.raises(GroupMaxSizeReached):
        group.find_joining("b", None, 1)


def test_classic_requests_find_classic_members_of_their_generation(group: ReplayedGroup) -> None:
    group.replay(member("a", is_classic=True))
    group.replay(member("b"))
    group.replay(current("a", 4))
    assert group.find_generation("a", None, 4).member_id == "a"
    with pytest.raises(IllegalGeneration, match="generation 4, not 3"):
        group.find_generation("a", None, 3)
    with pytest.raises(UnknownMemberId):
        group.find_generation("b", None, 0)


def test_a_classic_member_rejoins_when_its_assignment_changes(group: ReplayedGroup) -> None:
    group.replay(member("a", is_classic=True))
    group.replay(current("a", 1))
    assert not group.has_to_rejoin("a")
    group.replay(EpochSet(group_id="g", epoch=2))
    assert group.has_to_rejoin("a")
    group.replay(current("a", 2, state=MemberState.UNRELEASED))
    assert group.has_to_rejoin("a"), "everything that it waits for is free"


def test_a_member_subscribes_by_name_and_by_pattern(group: ReplayedGroup) -> None:
    group.replay(MemberStored(group_id="g", member_id="a", topics=("t",), pattern="u.*"))
    assert group.subscribed_topics() == {"t"}
    group.replay(
        PatternResolved(
            group_id="g", pattern="u.*", topics=("u1",), version=0, resolved_ms=TimestampMs(0)
        )
    )
    assert group.subscribed_topics() == {"t", "u1"}


def test_tombstones_remove_everything(group: ReplayedGroup) -> None:
    for record in (member("a", "i"), current("a", assigned=frozenset({P0}))):
        group.replay(record)
    for tombstone in group.tombstones():
        group.replay(tombstone)
    assert group == ReplayedGroup("g")


def test_a_record_of_another_group_is_our_mistake(group: ReplayedGroup) -> None:
    with pytest.raises(AssertionError, match="the group it names"):
        group.replay(EpochSet(group_id="other", epoch=1))


def test_a_member_does_not_take_the_instance_of_another(group: ReplayedGroup) -> None:
    group.replay(member("a"))
    group.replay(member("b", "i"))
    with pytest.raises(FencedInstanceId, match="instance 'i' is member 'b'"):
        group.find_joining("a", "i", 9)


def test_a_member_that_changes_its_instance_is_no_longer_found_by_the_old_one(
    group: ReplayedGroup,
) -> None:
    group.replay(member("a", "i"))
    group.replay(member("a", "j"))
    assert group.static == {"j": "a"}


def test_a_partition_that_has_gone_to_another_member_stays_with_it(group: ReplayedGroup) -> None:
    """As when a log is read from the middle of a change."""
    group.replay(current("a", assigned=frozenset({P0, P1})))
    group.replay(current("b", assigned=frozenset({P0})))
    group.replay(CurrentDropped("g", "a"))
    assert group.owners == {P0: "b"}
