"""Who gets which partitions: all of them, to one each, evenly, and the same ones as before."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.groups.assignors import Subscriber, assign_range, assign_uniform
from ottla.coordinator.groups.topics import IdPartition, Partitions
from ottla.model import Uuid

T, U, V = (Uuid(bytes([number]) * 16) for number in (1, 2, 3))


def of(topic: Uuid, *partitions: int) -> Partitions:
    return frozenset(IdPartition(topic, partition) for partition in partitions)


def reader(*topics: Uuid, target: Partitions = frozenset(), instance: str = "") -> Subscriber:
    return Subscriber(instance or None, frozenset(topics), target)


def test_range_gives_neighbours_to_the_same_member_in_every_topic() -> None:
    members = {"b": reader(T, U), "a": reader(T, U)}
    assert assign_range(members, {T: 3, U: 3}) == {
        "a": of(T, 0, 1) | of(U, 0, 1),
        "b": of(T, 2) | of(U, 2),
    }


def test_range_counts_static_members_first_and_by_their_instance() -> None:
    members = {"a": reader(T), "x": reader(T, instance="2"), "y": reader(T, instance="1")}
    assert assign_range(members, {T: 3}) == {"y": of(T, 0), "x": of(T, 1), "a": of(T, 2)}


def test_range_leaves_members_without_partitions_when_there_are_too_few() -> None:
    members = {"a": reader(T), "b": reader(T), "c": reader(U)}
    assert assign_range(members, {T: 1}) == {"a": of(T, 0), "b": of(T), "c": of(U)}


def test_uniform_moves_only_what_a_newcomer_needs() -> None:
    members = {
        "a": reader(T, target=of(T, 0, 1, 2)),
        "b": reader(T, target=of(T, 3, 4, 5)),
        "c": reader(T),
    }
    after = assign_uniform(members, {T: 6})
    assert {name: len(partitions) for name, partitions in after.items()} == {"a": 2, "b": 2, "c": 2}
    assert after["a"] < of(T, 0, 1, 2)
    assert after["b"] < of(T, 3, 4, 5)


def test_uniform_gives_what_is_left_over_to_those_who_have_it_already() -> None:
    members = {"a": reader(T, target=of(T, 0)), "b": reader(T, target=of(T, 1, 2))}
    assert assign_uniform(members, {T: 3}) == {"a": of(T, 0), "b": of(T, 1, 2)}


def test_uniform_takes_partitions_of_topics_that_are_gone() -> None:
    members = {"a": reader(T, U, target=of(U, 0, 1)), "b": reader(T, U)}
    assert assign_uniform(members, {T: 2}) == {"a": of(T, 0), "b": of(T, 1)}


def test_uniform_passes_partitions_on_in_a_chain() -> None:
    """a can only relieve itself through b, which alone shares a topic with c."""
    members = {
        "a": reader(T, target=of(T, 0, 1, 2)),
        "b": reader(T, U, target=of(U, 0, 1)),
        "c": reader(U, target=of(U, 2)),
    }
    after = assign_uniform(members, {T: 3, U: 3})
    assert {name: len(partitions) for name, partitions in after.items()} == {"a": 2, "b": 2, "c": 2}


def test_nobody_and_nothing() -> None:
    assert assign_uniform({}, {T: 3}) == {}
    assert assign_range({}, {T: 3}) == {}
    assert assign_uniform({"a": reader()}, {}) == {"a": frozenset()}


counts = st.fixed_dictionaries({T: st.integers(0, 9), U: st.integers(1, 6), V: st.integers(1, 3)})
subscriptions = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.sampled_from((T, U, V)), min_size=1), min_size=1
)


@given(subscriptions, counts)
def test_every_partition_has_one_reader_that_wants_it(
    wishes: dict[str, frozenset[Uuid]], partitions: dict[Uuid, int]
) -> None:
    members = {name: reader(*topics) for name, topics in wishes.items()}
    wanted = {
        IdPartition(topic, partition)
        for topic in frozenset().union(*wishes.values())
        for partition in range(partitions[topic])
    }
    for assign in (assign_uniform, assign_range):
        assigned = assign(members, partitions)
        given_out = [partition for mine in assigned.values() for partition in mine]
        assert len(given_out) == len(set(given_out))
        assert set(given_out) == wanted
        for name, mine in assigned.items():
            assert {topic for topic, _ in mine} <= wishes[name]


@given(subscriptions, counts)
def test_uniform_is_as_even_as_subscriptions_allow(
    wishes: dict[str, frozenset[Uuid]], partitions: dict[Uuid, int]
) -> None:
    """If one has two more than another, no chain of members that could pass on leads there."""
    members = {name: reader(*topics) for name, topics in wishes.items()}
    assigned = assign_uniform(members, partitions)
    for name, mine in assigned.items():
        reached, left = {name}, [name]
        while left:
            topics = {topic for topic, _ in assigned[left.pop()]}
            fresh = {m for m, topic in wishes.items() if topic & topics} - reached
            reached |= fresh
            left += fresh
        assert all(len(assigned[other]) >= len(mine) - 1 for other in reached)


@given(subscriptions, counts)
def test_asked_again_uniform_changes_nothing(
    wishes: dict[str, frozenset[Uuid]], partitions: dict[Uuid, int]
) -> None:
    first = assign_uniform({n: reader(*topics) for n, topics in wishes.items()}, partitions)
    again = {n: reader(*topics, target=first[n]) for n, topics in wishes.items()}
    assert assign_uniform(again, partitions) == first


@given(st.sets(st.sampled_from("abcdef"), min_size=2), st.integers(1, 20))
def test_when_one_leaves_nobody_else_loses_anything(names: set[str], partitions: int) -> None:
    first = assign_uniform({name: reader(T) for name in names}, {T: partitions})
    names.remove(min(names))
    members = {name: reader(T, target=first[name]) for name in names}
    after = assign_uniform(members, {T: partitions})
    assert all(first[name] <= after[name] for name in names)
