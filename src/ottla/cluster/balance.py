"""A plan that evens out replicas and leaders over brokers with as few moves as possible."""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from ottla.cluster.placement import Site, machine_of
from ottla.model import BrokerId, TopicPartition

Placement = dict[TopicPartition, tuple[BrokerId, ...]]


def balance(
    placed: Mapping[TopicPartition, Sequence[BrokerId]],
    sites: Mapping[BrokerId, Site],
    active: Collection[BrokerId],
) -> Placement:
    """The partitions whose replicas, or their order, are to change, with their new replicas.

    Only the `active` brokers get replicas and give them away. First replicas are moved, each from
    a broker that has most to one that has least, as long as the difference is more than one and
    no partition has its replicas in fewer racks or on fewer machines for it. Then the order of
    replicas is changed so that each broker is the first, and leads, of about as many partitions.
    """
    plan = _Plan(placed, sites, active)
    while plan.move_one():
        pass
    while plan.swap_one():
        pass
    before = {tp: tuple(replicas) for tp, replicas in placed.items()}
    return {tp: replicas for tp, replicas in plan.placed.items() if replicas != before[tp]}


class _Plan:
    """The placement as it would be after the changes made so far."""

    def __init__(
        self,
        placed: Mapping[TopicPartition, Sequence[BrokerId]],
        sites: Mapping[BrokerId, Site],
        active: Collection[BrokerId],
    ) -> None:
        self.placed: Placement = {tp: tuple(replicas) for tp, replicas in sorted(placed.items())}
        self._sites = sites
        self._active = sorted(active)
        every = [replicas for replicas in self.placed.values() if replicas]
        self._load = Counter(broker for replicas in every for broker in replicas)
        self._led = Counter(replicas[0] for replicas in every)
        self._here: dict[BrokerId, set[TopicPartition]] = {broker: set() for broker in self._active}
        for tp, replicas in self.placed.items():
            for broker in replicas:
                if broker in self._here:
                    self._here[broker].add(tp)

    # Replicas

    def move_one(self) -> bool:
        """Move a replica from a broker with many to one with few; False if none can be."""
        for high, low in self._uneven_pairs():
            found = self._movable(high, low)
            if found is not None:
                self._replace(found, high, low)
                return True
        return False

    def _uneven_pairs(self) -> Iterator[tuple[BrokerId, BrokerId]]:
        """Pairs of brokers, the most uneven first."""
        ordered = sorted(self._active, key=lambda broker: (self._load[broker], broker))
        for high in reversed(ordered):
            for low in ordered:
                if self._load[high] - self._load[low] < 2:
                    break
                yield high, low

    def _movable(self, high: BrokerId, low: BrokerId) -> TopicPartition | None:
        """A partition whose replica can go from one broker to another.

        One that `high` leads if it leads more than `low`, else one that it follows.
        """
        is_leader_wanted = self._led[high] > self._led[low]
        candidates = sorted(
            self._here[high] - self._here[low],
            key=lambda tp: ((self.placed[tp][0] == high) != is_leader_wanted, tp),
        )
        return next((tp for tp in candidates if self._keeps_apart(tp, high, low)), None)

    def _keeps_apart(self, tp: TopicPartition, high: BrokerId, low: BrokerId) -> bool:
        old = self.placed[tp]
        new = tuple(low if broker == high else broker for broker in old)
        return self._spread(new) >= self._spread(old)

    def _spread(self, replicas: Sequence[BrokerId]) -> tuple[int, int]:
        """The racks, and then the machines, that a partition's replicas are on."""
        known = [self._sites[broker] for broker in replicas if broker in self._sites]
        return len({site.rack for site in known}), len(set(map(machine_of, known)))

    def _replace(self, tp: TopicPartition, high: BrokerId, low: BrokerId) -> None:
        old = self.placed[tp]
        self.placed[tp] = tuple(low if broker == high else broker for broker in old)
        self._load[high] -= 1
        self._load[low] += 1
        self._here[high].discard(tp)
        self._here[low].add(tp)
        if old[0] == high:
            self._led[high] -= 1
            self._led[low] += 1

    # Leaders

    def swap_one(self) -> bool:
        """Let a broker that leads few be the first replica in place of one that leads many.

        The two may have no partition in common: then others in between take over from each
        other.
        """
        for high in sorted(self._active, key=lambda broker: (-self._led[broker], broker)):
            path = self._path_to_low(high)
            if path:
                for tp, leader in path:
                    rest = (broker for broker in self.placed[tp] if broker != leader)
                    self.placed[tp] = (leader, *rest)
                self._led[high] -= 1
                self._led[path[-1][1]] += 1
                return True
        return False

    def _path_to_low(self, high: BrokerId) -> list[tuple[TopicPartition, BrokerId]]:
        """The shortest chain of new leaders that ends at a broker which leads two fewer."""
        came: dict[BrokerId, tuple[BrokerId, TopicPartition]] = {}
        waiting, seen = deque([high]), {high}
        while waiting:
            leader = waiting.popleft()
            if self._led[high] - self._led[leader] >= 2:
                return _unwound(came, leader)
            for tp in sorted(self._here[leader]):
                replicas = self.placed[tp]
                if replicas[0] != leader:
                    continue
                for follower in replicas[1:]:
                    if follower in self._here and follower not in seen:
                        seen.add(follower)
                        came[follower] = (leader, tp)
                        waiting.append(follower)
        return []


def _unwound(
    came: Mapping[BrokerId, tuple[BrokerId, TopicPartition]], last: BrokerId
) -> list[tuple[TopicPartition, BrokerId]]:
    path: list[tuple[TopicPartition, BrokerId]] = []
    broker = last
    while broker in came:
        before, tp = came[broker]
        path.append((tp, broker))
        broker = before
    path.reverse()
    return path
