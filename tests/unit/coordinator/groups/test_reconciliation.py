"""One member's steps: it gives up before it gets, and its epoch says how far it is."""

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.consumer_records import CurrentSet, MemberState
from ottla.coordinator.groups.reconciliation import advance
from ottla.coordinator.groups.topics import IdPartition, Partitions

CATALOG = TopicCatalog(t=3)
P0, P1, P2 = (CATALOG.partition("t", index) for index in range(3))


def current(*assigned: IdPartition, epoch: int = 1) -> CurrentSet:
    return CurrentSet(group_id="g", member_id="m", epoch=epoch, assigned=frozenset(assigned))


def step(
    before: CurrentSet,
    *target: IdPartition,
    epoch: int = 2,
    owned: Partitions | None = None,
    held: Partitions = frozenset(),
) -> CurrentSet:
    """The next step; `held` are partitions of other members."""
    return advance(before, frozenset(target), epoch, owned, lambda p: p not in held)


def test_a_member_that_has_its_target_stays() -> None:
    before = current(P0, epoch=2)
    assert step(before, P0) is before


def test_free_partitions_are_assigned_at_once() -> None:
    after = step(current(P0), P0, P1)
    assert (after.state, after.assigned) == (MemberState.STABLE, frozenset({P0, P1}))
    assert (after.epoch, after.previous_epoch) == (2, 1)


def test_a_member_stays_in_its_epoch_until_it_has_given_up() -> None:
    revoking = step(current(P0, P1), P0, P2)
    assert (revoking.state, revoking.epoch) == (MemberState.UNREVOKED, 1)
    assert (revoking.assigned, revoking.revoking) == (frozenset({P0}), frozenset({P1}))
    assert step(revoking, P0, P2, owned=frozenset({P0, P1})) is revoking
    assert step(revoking, P0, P2) is revoking, "a heartbeat that does not say what it owns"
    after = step(revoking, P0, P2, owned=frozenset({P0}))
    assert (after.state, after.epoch) == (MemberState.STABLE, 2)
    assert (after.assigned, after.revoking) == (frozenset({P0, P2}), frozenset())


def test_a_member_that_owns_nothing_of_what_it_loses_has_nothing_to_give_up() -> None:
    after = step(current(P0, P1), P0, owned=frozenset({P0}))
    assert (after.state, after.assigned) == (MemberState.STABLE, frozenset({P0}))


def test_a_partition_that_another_member_holds_is_waited_for() -> None:
    waiting = step(current(P0), P0, P1, held=frozenset({P1}))
    assert (waiting.state, waiting.epoch) == (MemberState.UNRELEASED, 2)
    assert waiting.assigned == {P0}
    assert step(waiting, P0, P1, held=frozenset({P1})) == waiting
    assert step(waiting, P0, P1).assigned == {P0, P1}


def test_a_second_revocation_has_an_epoch_of_its_own() -> None:
    first = step(current(P0, P1, P2), P0, P1)
    second = step(first, P0, owned=frozenset({P0, P1}), epoch=3)
    assert (second.state, second.revoking) == (MemberState.UNREVOKED, frozenset({P1}))
    assert (second.epoch, second.previous_epoch) == (2, 1)
