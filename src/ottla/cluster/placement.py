"""Which brokers hold the replicas of a partition: leaders in turn, copies in different racks."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ottla.cluster.image import BrokerImage
from ottla.model import BrokerId


def place(
    brokers: Iterable[BrokerImage], partitions: range, replication_factor: int, *, start: int
) -> tuple[tuple[BrokerId, ...], ...]:
    """The replicas of each partition, its preferred leader first.

    Leaders go round all brokers from the one that `start` (any number) points at. The copies of a
    partition lie in as many racks as there are, and on each round beside other neighbours, so
    that a broker's load is shared by all the others when it is gone.
    """
    ring = _alternate_racks(brokers)
    assert 1 <= replication_factor <= len(ring), "refused before"
    return tuple(_replicas(ring, partition, replication_factor, start) for partition in partitions)


def _alternate_racks(brokers: Iterable[BrokerImage]) -> tuple[BrokerImage, ...]:
    """All brokers in a row in which neighbours lie in different racks as far as possible."""
    by_rack: defaultdict[str, list[BrokerImage]] = defaultdict(list)
    for broker in sorted(brokers, key=lambda broker: broker.id):
        by_rack[broker.rack or ""].append(broker)
    turns = (
        (turn, rack, broker)
        for rack, members in by_rack.items()
        for turn, broker in enumerate(members)
    )
    return tuple(broker for _, _, broker in sorted(turns, key=lambda item: item[:2]))


def _replicas(
    ring: Sequence[BrokerImage], partition: int, count: int, start: int
) -> tuple[BrokerId, ...]:
    leader_at = (start + partition) % len(ring)
    others = [*ring[leader_at + 1 :], *ring[:leader_at]]
    if others:
        shift = (start // len(ring) + partition // len(ring)) % len(others)
        others = others[shift:] + others[:shift]
    chosen = [ring[leader_at]]
    while len(chosen) < count:
        racks = Counter(broker.rack for broker in chosen)
        follower = min(others, key=lambda broker: racks[broker.rack])
        others.remove(follower)
        chosen.append(follower)
    return tuple(broker.id for broker in chosen)
