"""Where offsets go."""

from functools import partial
from typing import TypedDict

import pytest

from ottla.cli.group.offset_reset import (
    Current,
    PartitionFacts,
    Reset,
    Shift,
    Target,
    choose_target,
    plan_reset,
)
from ottla.client.positions import AtOffset, AtTime, Edge
from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition

TP = TopicPartition("orders", 0)
NOW_MS = TimestampMs(1_794_700_800_000)
choose = partial(
    choose_target,
    NOW_MS,
    to_earliest=False,
    to_latest=False,
    to_offset=None,
    to_time=None,
    by_duration=None,
    shift_by=None,
    to_current=False,
)


class Options(TypedDict, total=False):
    """Options that say where to; the others are left out."""

    to_earliest: bool
    to_latest: bool
    to_offset: int
    to_time: str
    by_duration: str
    shift_by: int
    to_current: bool


def facts(committed: int | None = 50, at_time: int | None = None) -> PartitionFacts:
    """A log from 10 to 100."""
    return PartitionFacts(
        start=Offset(10),
        end=Offset(100),
        committed=None if committed is None else Offset(committed),
        at_time=None if at_time is None else Offset(at_time),
    )


def plan(target: Target, fact: PartitionFacts) -> Reset:
    (reset,) = plan_reset(target, {TP: fact})
    assert reset.tp == TP
    assert reset.current == fact.committed
    return reset


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (Edge.BEGINNING, 10),
        (Edge.END, 100),
        (AtOffset(Offset(10)), 10),
        (AtOffset(Offset(42)), 42),
        (AtOffset(Offset(100)), 100),
        (Shift(-5), 45),
        (Shift(0), 50),
        (Shift(50), 100),
        (Current.CURRENT, 50),
    ],
    ids=str,
)
def test_an_offset_that_the_log_has_is_taken(target: Target, new: int) -> None:
    reset = plan(target, facts())
    assert (reset.new, reset.note) == (new, "")


@pytest.mark.parametrize(
    ("target", "new", "note"),
    [
        (AtOffset(Offset(9)), 10, "not 9: the log begins at 10"),
        (AtOffset(Offset(101)), 100, "not 101: the log ends at 100"),
        (Shift(-60), 10, "not -10: the log begins at 10"),
        (Shift(51), 100, "not 101: the log ends at 100"),
    ],
    ids=str,
)
def test_an_offset_that_it_has_not_becomes_the_nearest_with_a_note(
    target: Target, new: int, note: str
) -> None:
    reset = plan(target, facts())
    assert (reset.new, reset.note) == (new, note)


def test_what_was_committed_and_is_gone_is_moved_too() -> None:
    reset = plan(Current.CURRENT, facts(committed=3))
    assert (reset.new, reset.note) == (10, "not 3: the log begins at 10")


def test_a_time_is_its_record_or_the_end() -> None:
    at_noon = AtTime(TimestampMs(43_200_000))
    assert plan(at_noon, facts(at_time=77)).new == 77
    late = plan(at_noon, facts(at_time=None))
    assert (late.new, late.note) == (100, "every record is older")


def test_where_nothing_is_committed_nothing_can_be_shifted() -> None:
    reset = plan(Shift(-1), facts(committed=None))
    assert (reset.new, reset.note) == (None, "no committed offset to shift")


def test_to_current_makes_an_offset_of_the_end() -> None:
    reset = plan(Current.CURRENT, facts(committed=None))
    assert (reset.new, reset.note) == (100, "no offset was committed")


def test_a_plan_is_in_order() -> None:
    tps = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    planned = plan_reset(Edge.END, {tp: facts() for tp in tps})
    assert [reset.tp for reset in planned] == sorted(tps)


@pytest.mark.parametrize(
    ("said", "target"),
    [
        ({"to_earliest": True}, Edge.BEGINNING),
        ({"to_latest": True}, Edge.END),
        ({"to_offset": 0}, AtOffset(Offset(0))),
        ({"to_time": "2026-11-15T00:00Z"}, AtTime(NOW_MS)),
        ({"by_duration": "2h"}, AtTime(TimestampMs(NOW_MS - 7_200_000))),
        ({"shift_by": 0}, Shift(0)),
        ({"shift_by": -3}, Shift(-3)),
        ({"to_current": True}, Current.CURRENT),
    ],
    ids=str,
)
def test_one_option_says_where_to(said: Options, target: Target) -> None:
    assert choose(**said) == target


@pytest.mark.parametrize(
    "said",
    [{}, {"to_earliest": True, "to_latest": True}, {"to_offset": 0, "shift_by": 0}],
    ids=str,
)
def test_no_option_or_two_make_no_sense(said: Options) -> None:
    with pytest.raises(UsageRefused, match="give exactly one of"):
        choose(**said)
