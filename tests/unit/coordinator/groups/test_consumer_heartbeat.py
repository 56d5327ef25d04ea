"""A heartbeat by itself: what contradicts itself is refused, what is not sent stays as it was."""

from dataclasses import replace

import pytest

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.consumer_heartbeat import LEAVING_FOR_A_WHILE, ConsumerHeartbeat
from ottla.coordinator.groups.consumer_records import ClassicPart, MemberStored
from ottla.errors import InvalidRequest, UnsupportedAssignor

JOIN = ConsumerHeartbeat(
    member_id="m",
    epoch=0,
    rebalance_timeout_ms=5000,
    topics=frozenset({"t"}),
    owned=frozenset(),
)
KNOWN = MemberStored(
    group_id="g",
    member_id="m",
    instance_id="i",
    rack_id="r",
    topics=("t",),
    pattern="p.*",
    rebalance_timeout_ms=7,
    assignor="range",
    classic=ClassicPart(1, ()),
)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(JOIN, epoch=-3),
        replace(JOIN, member_id=""),
        replace(JOIN, instance_id=""),
        replace(JOIN, rack_id=""),
        replace(JOIN, epoch=LEAVING_FOR_A_WHILE),
        replace(JOIN, rebalance_timeout_ms=None),
        replace(JOIN, owned=None),
        replace(JOIN, owned=TopicCatalog(t=1).all_of("t")),
        replace(JOIN, topics=frozenset()),
    ],
)
def test_a_heartbeat_that_contradicts_itself_is_refused(wrong: ConsumerHeartbeat) -> None:
    JOIN.check(["uniform"])
    with pytest.raises(InvalidRequest):
        wrong.check(["uniform"])


def test_an_older_client_joins_without_an_id_and_only_then() -> None:
    replace(JOIN, member_id="", makes_own_id=False).check(["uniform"])
    with pytest.raises(InvalidRequest):
        replace(JOIN, member_id="", makes_own_id=False, epoch=1).check(["uniform"])


def test_an_assignor_that_is_not_allowed_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnsupportedAssignor, match="uniform, range"):
        replace(JOIN, assignor="own").check(["uniform", "range"])


def test_fields_that_are_not_sent_stay_as_they_were() -> None:
    updated = ConsumerHeartbeat(member_id="m", epoch=1, client_id="c").updated(KNOWN, "m")
    assert updated == replace(KNOWN, client_id="c", classic=None)


def test_a_join_unsets_fields_that_are_not_sent() -> None:
    joined = JOIN.updated(KNOWN, "new")
    assert (joined.member_id, joined.instance_id) == ("new", "i")
    assert (joined.rack_id, joined.pattern, joined.assignor) == (None, None, None)
    assert (joined.topics, joined.rebalance_timeout_ms) == (("t",), 5000)


def test_an_empty_pattern_unsets_the_pattern() -> None:
    updated = ConsumerHeartbeat(member_id="m", epoch=1, pattern="").updated(KNOWN, "m")
    assert updated.pattern is None


def test_a_heartbeat_with_all_fields_asks_for_the_assignment() -> None:
    assert JOIN.is_full
    assert replace(JOIN, epoch=3).is_full
    assert not replace(JOIN, epoch=3, owned=None).is_full
    assert not ConsumerHeartbeat(member_id="m", epoch=3).is_full
