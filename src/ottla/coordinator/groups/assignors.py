"""Assignors of consumer groups: from subscriptions to a target assignment.

Both are deterministic. Every partition of a subscribed topic is assigned to exactly one of the
members that subscribe to it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.coordinator.groups.topics import NOTHING, IdPartition, Partitions
from ottla.model import Uuid


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    instance_id: str | None
    topics: frozenset[Uuid]
    target: Partitions = NOTHING  # of the epoch before


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[Uuid, int]  # partitions of each topic
Assignor = Callable[[Subscribers, Counts], dict[str, Partitions]]


def assign_range(members: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign a range of adjacent partitions of each topic to every member.

    Members that subscribe to the same topics get the same indexes of each, so records that share
    a key in several topics are read by one member.
    """
    assigned: dict[str, set[IdPartition]] = {member_id: set() for member_id in members}
    in_order = sorted(members, key=lambda member_id: _rank(member_id, members[member_id]))
    for topic_id in _topics(members, counts):
        readers = [m for m in in_order if topic_id in members[m].topics]
        each, more = divmod(counts[topic_id], len(readers))
        start = 0
        for rank, member_id in enumerate(readers):
            end = start + each + (rank < more)
            assigned[member_id].update(IdPartition(topic_id, p) for p in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _rank(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members first and by their instance: they keep their rank through restarts."""
    if member.instance_id is None:
        return True, member_id
    return False, member.instance_id


def assign_uniform(members: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign equal numbers, as far as subscriptions allow; members keep what they can."""
    if len({member.topics for member in members.values()}) <= 1:
        return _assign_alike(members, counts)
    draft = _Draft(members, counts)
    draft.keep()
    draft.hand_out()
    draft.balance()
    return draft.assignment()


def _assign_alike(members: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Assign to members with equal subscriptions: their numbers differ by one at most."""
    free = {
        IdPartition(topic_id, partition): None
        for topic_id in _topics(members, counts)
        for partition in range(counts[topic_id])
    }
    each, more = divmod(len(free), len(members)) if members else (0, 0)
    assigned: dict[str, list[IdPartition]] = {}
    # Members that have most keep one more: no member has to wait for a partition that stays.
    had = {m: sorted(p for p in members[m].target if p in free) for m in sorted(members)}
    for member_id in sorted(had, key=lambda m: (-len(had[m]), m)):
        share = each + (len(had[member_id]) > each and more > 0)
        more -= share > each
        assigned[member_id] = had[member_id][:share]
    for kept in assigned.values():
        for partition in kept:
            del free[partition]
    remaining = deque(free)
    for kept in assigned.values():
        share = max(each, len(kept))
        if share == each and more > 0:
            share, more = each + 1, more - 1
        while len(kept) < share:
            kept.append(remaining.popleft())
    assert not remaining, "every partition is assigned"
    return {member_id: frozenset(kept) for member_id, kept in assigned.items()}


@dataclass(slots=True)
class _Draft:
    """An assignment in the making, for members that subscribe to different topics."""

    members: Subscribers
    counts: Counts
    _owned: dict[str, dict[Uuid, list[int]]] = field(default_factory=dict)
    _load: dict[str, int] = field(default_factory=dict)
    _free: dict[Uuid, dict[int, None]] = field(default_factory=dict)
    _readers: dict[Uuid, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owned = {member_id: {} for member_id in sorted(self.members)}
        self._load = dict.fromkeys(self._owned, 0)
        for topic_id in _topics(self.members, self.counts):
            self._readers[topic_id] = [m for m in self._owned if topic_id in self.members[m].topics]
            self._free[topic_id] = dict.fromkeys(range(self.counts[topic_id]))

    def keep(self) -> None:
        """Assign to each member what it had and still subscribes to."""
        for member_id in self._owned:
            for topic_id, partition in sorted(self.members[member_id].target):
                subscribes = topic_id in self.members[member_id].topics
                if subscribes and partition in self._free.get(topic_id, ()):
                    del self._free[topic_id][partition]
                    self._give(member_id, topic_id, partition)

    def hand_out(self) -> None:
        """Assign free partitions to the members with the fewest; topics with few readers first."""
        for topic_id in sorted(self._free, key=lambda t: (len(self._readers[t]), t)):
            for partition in self._free[topic_id]:
                reader = min(self._readers[topic_id], key=lambda m: self._load[m])
                self._give(reader, topic_id, partition)

    def balance(self) -> None:
        """Move partitions until no member can be relieved.

        A member with too many may have to pass one to a second that passes another to a third:
        without such chains some subscriptions stay needlessly uneven. Every move takes one from
        a member to one that has at least two less, so there is an end.
        """
        while any(self._relieve(m) for m in sorted(self._load, key=lambda m: -self._load[m])):
            pass

    def _relieve(self, member_id: str) -> bool:
        chain = self._relief(member_id)
        for giver, topic_id, taker in chain:
            partition = self._owned[giver][topic_id].pop()
            self._load[giver] -= 1
            self._give(taker, topic_id, partition)
        return bool(chain)

    def _relief(self, start: str) -> list[tuple[str, Uuid, str]]:
        """The shortest chain of moves that ends at a member with at least two less than `start`."""
        came: dict[str, tuple[str, Uuid] | None] = {start: None}
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            if self._load[giver] <= self._load[start] - 2:
                return _chain(came, giver)
            for topic_id, partitions in self._owned[giver].items():
                for taker in self._readers[topic_id] if partitions else ():
                    if taker not in came:
                        came[taker] = (giver, topic_id)
                        queue.append(taker)
        return []

    def assignment(self) -> dict[str, Partitions]:
        return {
            member_id: frozenset(
                IdPartition(topic_id, partition)
                for topic_id, partitions in owned.items()
                for partition in partitions
            )
            for member_id, owned in self._owned.items()
        }

    def _give(self, member_id: str, topic_id: Uuid, partition: int) -> None:
        self._owned[member_id].setdefault(topic_id, []).append(partition)
        self._load[member_id] += 1


def _chain(came: dict[str, tuple[str, Uuid] | None], end: str) -> list[tuple[str, Uuid, str]]:
    chain = []
    taker = end
    while (step := came[taker]) is not None:
        giver, topic_id = step
        chain.append((giver, topic_id, taker))
        taker = giver
    return chain


def _topics(members: Subscribers, counts: Counts) -> list[Uuid]:
    """Topics that exist and are subscribed to, in a fixed order."""
    subscribed = {topic_id for member in members.values() for topic_id in member.topics}
    return sorted(subscribed & counts.keys())


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
