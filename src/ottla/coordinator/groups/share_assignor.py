"""The assignor of share groups: a partition has two members or more, if there are two.

So no partition waits until a dead member is missed.
"""

from collections.abc import Mapping

from ottla.coordinator.groups.topics import IdPartition, Partitions
from ottla.model import Uuid

NAME = "simple"


def assign(
    subscriptions: Mapping[str, frozenset[Uuid]], counts: Mapping[Uuid, int]
) -> dict[str, Partitions]:
    """Partitions for each member: every partition has members, and every member a partition.

    Topics with the same subscribers are dealt out together, members and partitions in turn, until
    all members and twice all partitions were dealt. So numbers differ by one at most among them.
    """
    topics_of: dict[tuple[str, ...], list[Uuid]] = {}
    for topic_id in sorted(counts):
        members = tuple(m for m in sorted(subscriptions) if topic_id in subscriptions[m])
        if members and counts[topic_id]:
            topics_of.setdefault(members, []).append(topic_id)
    dealt: dict[str, set[IdPartition]] = {member: set() for member in subscriptions}
    for members, topic_ids in topics_of.items():
        partitions = [IdPartition(t, index) for t in topic_ids for index in range(counts[t])]
        is_even = len(partitions) % len(members) == 0  # then all would get the same ones again
        for turn in range(max(len(members), 2 * len(partitions))):
            time, index = divmod(turn, len(partitions))
            member = members[(turn + time * is_even) % len(members)]
            dealt[member].add(partitions[index])
    return {member: frozenset(found) for member, found in dealt.items()}
