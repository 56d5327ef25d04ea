"""Who gets which partition."""

from ottla.client.assignors import assign_in_turn, assign_ranges
from ottla.model import TopicPartition


def tps(text: str) -> list[TopicPartition]:
    """Read "a0 a1 b0"."""
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


ALL = frozenset({"a", "b"})


def test_ranges_are_neighbours_and_the_first_members_get_one_more() -> None:
    assigned = assign_ranges({"m2": ALL, "m1": ALL}, {"b": 3, "a": 4})
    assert assigned == {"m1": tps("a0 a1 b0 b1"), "m2": tps("a2 a3 b2")}


def test_turns_go_on_from_topic_to_topic() -> None:
    assigned = assign_in_turn({"m2": ALL, "m1": ALL}, {"b": 3, "a": 3})
    assert assigned == {"m1": tps("a0 a2 b1"), "m2": tps("a1 b0 b2")}


def test_a_topic_goes_only_to_those_who_want_it() -> None:
    wanted = {"m1": frozenset({"a"}), "m2": ALL, "m3": frozenset({"b"})}
    counts = {"a": 2, "b": 2, "nobody": 5}
    assert assign_ranges(wanted, counts) == {
        "m1": tps("a0"),
        "m2": tps("a1 b0"),
        "m3": tps("b1"),
    }
    assert assign_in_turn(wanted, counts) == {
        "m1": tps("a0"),
        "m2": tps("a1 b1"),
        "m3": tps("b0"),
    }


def test_whoever_comes_too_many_gets_nothing_and_a_missing_topic_is_empty() -> None:
    for assign in (assign_ranges, assign_in_turn):
        assert assign({"m1": ALL, "m2": ALL}, {"a": 1, "b": 0}) == {"m1": tps("a0"), "m2": []}
