"""How a group's leader shares out partitions: as other clients' assignors of these names do."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Final

from ottla.model import TopicPartition

Subscriptions = Mapping[str, frozenset[str]]  # member id to the topics that it wants
PartitionCounts = Mapping[str, int]  # of topics; one that does not exist has none
Assignments = dict[str, list[TopicPartition]]  # every member, also one that gets nothing
Assign = Callable[[Subscriptions, PartitionCounts], Assignments]


def assign_ranges(wanted: Subscriptions, counts: PartitionCounts) -> Assignments:
    """Of each topic a run of neighbouring partitions for each member; the first get one more."""
    assigned: Assignments = {member: [] for member in wanted}
    for topic, count in sorted(counts.items()):
        takers = sorted(member for member, topics in wanted.items() if topic in topics)
        start = 0
        for place, member in enumerate(takers):
            share = count // len(takers) + (place < count % len(takers))
            assigned[member] += [TopicPartition(topic, start + n) for n in range(share)]
            start += share
    return assigned


def assign_in_turn(wanted: Subscriptions, counts: PartitionCounts) -> Assignments:
    """Give each partition in turn to the next member that wants its topic."""
    assigned: Assignments = {member: [] for member in wanted}
    turns = cycle(sorted(wanted))
    for topic, count in sorted(counts.items()):
        if not any(topic in topics for topics in wanted.values()):
            continue
        for index in range(count):
            taker = next(member for member in turns if topic in wanted[member])
            assigned[taker].append(TopicPartition(topic, index))
    return assigned


# The one that is put first is liked best; the group takes one that all its members know.
ASSIGNORS: Final[dict[str, Assign]] = {"range": assign_ranges, "roundrobin": assign_in_turn}
