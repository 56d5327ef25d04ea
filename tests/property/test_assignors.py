"""Assignors give everything away once, fairly, and as another client's do."""

from collections import Counter

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.assignors import ASSIGNORS, assign_ranges
from ottla.model import TopicPartition

TOPICS = ["a", "b", "c"]
THEIRS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}

subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(6)]),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
    min_size=1,
)
counts = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})


class KnownTopics:
    """A cluster as aiokafka's assignors ask for it."""

    def __init__(self, partition_counts: dict[str, int]) -> None:
        self._partition_counts = partition_counts

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._partition_counts[topic]))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(wanted=subscriptions, partition_counts=counts)
def test_every_wanted_partition_goes_to_one_member_that_wants_it(
    name: str, wanted: dict[str, frozenset[str]], partition_counts: dict[str, int]
) -> None:
    assigned = ASSIGNORS[name](wanted, partition_counts)
    assert assigned.keys() == wanted.keys()
    given_away = Counter(tp for tps in assigned.values() for tp in tps)
    asked_for = frozenset[str]().union(*wanted.values())
    assert given_away == Counter(
        TopicPartition(topic, n) for topic in asked_for for n in range(partition_counts[topic])
    )
    for member, tps in assigned.items():
        assert {tp.topic for tp in tps} <= wanted[member]


@given(wanted=subscriptions, partition_counts=counts)
def test_ranges_of_a_topic_differ_by_one_at_most(
    wanted: dict[str, frozenset[str]], partition_counts: dict[str, int]
) -> None:
    assigned = assign_ranges(wanted, partition_counts)
    for topic in TOPICS:
        shares = [
            sum(tp.topic == topic for tp in assigned[member])
            for member, topics in wanted.items()
            if topic in topics
        ]
        assert max(shares, default=0) - min(shares, default=0) <= 1


@pytest.mark.parametrize("name", ASSIGNORS)
@given(wanted=subscriptions, partition_counts=counts)
def test_another_client_would_have_shared_out_the_same(
    name: str, wanted: dict[str, frozenset[str]], partition_counts: dict[str, int]
) -> None:
    assignor = THEIRS[name]
    members = {member: assignor.metadata(sorted(topics)) for member, topics in wanted.items()}
    theirs = assignor.assign(KnownTopics(partition_counts), members)
    ours = ASSIGNORS[name](wanted, partition_counts)
    for member, tps in ours.items():
        shared_out = [
            TopicPartition(topic, index)
            for topic, indexes in theirs[member].assignment
            for index in indexes
        ]
        assert tps == shared_out
