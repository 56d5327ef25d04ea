"""The ids of the topics that a query has read, batch by batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.spark.plan import TaskRange
from ottla.spark.topic_ids import (
    IDS_MAX,
    assign_topic_checks,
    decode_ids,
    encode_ids,
    id_before,
    note_id,
    with_ranges_from_earliest,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def part(tp: TopicPartition, start: int, end: int) -> TaskRange:
    return TaskRange(tp, OffsetRange(Offset(start), Offset(end)))


def test_every_partition_that_was_read_before_belongs_to_one_task() -> None:
    tasks = [(part(A0, 5, 7),), (part(A0, 7, 9), part(B0, 0, 3))]
    start = {A0: Offset(5), A1: Offset(8), B0: Offset(0)}
    end = {A0: Offset(9), A1: Offset(8), B0: Offset(3)}
    first, second = assign_topic_checks(tasks, start, end, {"a": "x", "b": "y"})
    assert (first.ids, first.noted, first.begins) == (
        {"a": "x"},
        frozenset({"a"}),
        {A0: Offset(5), A1: Offset(8)},
    )
    assert (second.ids, second.noted) == ({"a": "x", "b": "y"}, frozenset({"b"}))
    assert second.begins == {B0: 0}
    whole = with_ranges_from_earliest(first, ["a"], {A0: Offset(0), A1: Offset(2)})
    assert whole == (part(A0, 0, 7), part(A1, 2, 8))
    assert with_ranges_from_earliest(first, ["b"], {A0: Offset(0)}) == first.ranges


def test_a_partition_that_became_shorter_is_read_from_its_beginning_by_the_plan_alone() -> None:
    (only,) = assign_topic_checks([(part(A0, 0, 3),)], {A0: Offset(5)}, {A0: Offset(3)}, {})
    assert only.begins == {}


def test_a_change_is_found_again_by_the_batch_that_found_it() -> None:
    ids = note_id((), 0, "x")
    assert id_before((), 0) is None
    assert note_id(ids, 1, "x") == ids
    changed = note_id(ids, 2, "y")
    assert [id_before(changed, batch) for batch in (0, 1, 2, 3)] == ["x", "x", "x", "y"]
    assert note_id(changed, 2, "y") == changed
    # The topic was made anew while the first batch was under way.
    again = note_id(ids, 0, "y")
    assert [id_before(again, batch) for batch in (0, 1)] == ["x", "y"]
    assert note_id(again, 0, "y") == again


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz")), max_size=30))
def test_the_next_batch_finds_the_topic_of_the_last(steps: list[tuple[int, str]]) -> None:
    """Batches go on, are repeated, or begin again from an older checkpoint."""
    ids, batch = note_id((), 0, "x"), 0
    for back, topic in steps:
        batch = max(batch + 1 - back, 0)
        noted = note_id(ids, batch, topic)
        before = id_before(ids, batch)
        assert id_before(noted, batch + 1) == topic
        if before is not None and before != topic:
            assert id_before(noted, batch) == before  # repeated, it finds the same change
        assert len(noted) <= IDS_MAX
        assert [since for since, _ in noted] == sorted({since for since, _ in noted})
        ids = noted
    assert decode_ids(encode_ids(ids)) == ids


def test_what_cannot_be_read_is_told() -> None:
    assert decode_ids(None) == ()
    assert decode_ids(b'{"format":9}') == ()
    with pytest.raises(ValueError, match="cannot be read"):
        decode_ids(b"{}")
