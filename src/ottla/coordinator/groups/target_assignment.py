"""The target assignment of a consumer group: which partitions each member is to have."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ottla.coordinator.groups.assignors import ASSIGNORS, Subscriber
from ottla.coordinator.groups.consumer_group_state import ReplayedGroup
from ottla.coordinator.groups.consumer_records import ConsumerRecord, TargetEpochSet, TargetSet
from ottla.coordinator.groups.topics import Topics


def preferred_assignor(group: ReplayedGroup, allowed: Sequence[str]) -> str:
    """The assignor that most members prefer, of those that are allowed."""
    votes = Counter(m.assignor for m in group.members.values() if m.assignor in allowed)
    return max(votes, key=lambda name: (votes[name], name or ""), default=None) or allowed[0]


def target_records(group: ReplayedGroup, assignor: str, topics: Topics) -> Iterator[ConsumerRecord]:
    """Records that change the targets to those of the group's present epoch."""
    known = topics.topics
    subscribers = {
        member.member_id: Subscriber(
            member.instance_id,
            frozenset(known[name].id for name in group.subscription(member) if name in known),
            group.target(member.member_id),
        )
        for member in group.members.values()
    }
    counts = {
        known[name].id: known[name].listed_count
        for name in group.subscribed_topics()
        if name in known
    }
    targets = ASSIGNORS[assignor](subscribers, counts)
    assigned_count = sum(map(len, targets.values()))
    assert assigned_count == len(frozenset().union(*targets.values())), "a partition has one member"
    for member_id, partitions in targets.items():
        if group.targets.get(member_id) != partitions:
            yield TargetSet(group.group_id, member_id, partitions)
    yield TargetEpochSet(group.group_id, group.epoch)
