"""Targets of a consumer group: made by the assignor that most prefer, written where they change."""

import pytest

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.consumer_group_state import ReplayedGroup
from ottla.coordinator.groups.consumer_records import (
    EpochSet,
    MemberStored,
    TargetEpochSet,
    TargetSet,
)
from ottla.coordinator.groups.target_assignment import preferred_assignor, target_records


def group_of(**assignors: str | None) -> ReplayedGroup:
    """A group in epoch 3 whose members prefer these assignors and read t."""
    group = ReplayedGroup("g")
    group.replay(EpochSet(group_id="g", epoch=3))
    for member_id, assignor in assignors.items():
        group.replay(
            MemberStored(group_id="g", member_id=member_id, topics=("t",), assignor=assignor)
        )
    return group


@pytest.mark.parametrize(
    ("assignors", "preferred"),
    [
        ({"a": "range", "b": "range", "c": "uniform", "d": None}, "range"),
        ({"a": None}, "uniform"),
        ({}, "uniform"),
        ({"a": "own"}, "uniform"),
    ],
)
def test_the_assignor_that_most_prefer_is_taken_of_those_allowed(
    assignors: dict[str, str | None], preferred: str
) -> None:
    assert preferred_assignor(group_of(**assignors), ("uniform", "range")) == preferred


def test_only_targets_that_change_are_written_and_then_their_epoch() -> None:
    catalog = TopicCatalog(t=2)
    group = group_of(a=None, b=None)
    for record in target_records(group, "range", catalog.image):
        group.replay(record)
    assert group.target("a") | group.target("b") == catalog.all_of("t")
    assert group.target_epoch == 3
    assert list(target_records(group, "range", catalog.image)) == [TargetEpochSet("g", 3)]
    catalog.grow("t", 4)
    records = list(target_records(group, "range", catalog.image))
    assert [type(record) for record in records] == [TargetSet, TargetSet, TargetEpochSet]


def test_topics_that_do_not_exist_are_left_out() -> None:
    records = list(target_records(group_of(a=None), "uniform", TopicCatalog().image))
    assert records == [TargetSet("g", "a", frozenset()), TargetEpochSet("g", 3)]
