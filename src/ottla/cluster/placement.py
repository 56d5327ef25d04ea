"""Placement of replicas: leaders round-robin over brokers, copies on other machines and racks."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from ottla.cluster.values import BrokerImage
from ottla.config.setting import AUTO, NumberOrAuto
from ottla.model import BrokerId

_AUTO_MAX: Final = 3  # replicas: one may be lost while another is being replaced


class Site(Protocol):
    """A broker, alive or not, as far as placement is concerned: its rack and its machine."""

    @property
    def id(self) -> BrokerId: ...

    @property
    def rack(self) -> str | None: ...

    @property
    def machine(self) -> str | None: ...


def place(
    brokers: Iterable[BrokerImage], partitions: range, replication_factor: int, *, start: int
) -> tuple[tuple[BrokerId, ...], ...]:
    """The replicas of each partition, its preferred leader first.

    Leaders are chosen round-robin from the broker at `start` (any number) on. The copies of a
    partition are in as many racks as there are, then on as many machines, and on other followers
    in each round, so that the load of a failed broker is shared by all the others.
    """
    ring = _alternate_racks(brokers)
    assert 1 <= replication_factor <= len(ring), (
        f"{replication_factor} replicas on {len(ring)} brokers should have been refused before"
    )
    return tuple(_replicas(ring, partition, replication_factor, start) for partition in partitions)


def _alternate_racks(brokers: Iterable[BrokerImage]) -> tuple[BrokerImage, ...]:
    """All brokers in an order in which adjacent ones are in different racks if possible."""
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
        follower = _farthest(others, chosen)
        others.remove(follower)
        chosen.append(follower)
    return tuple(broker.id for broker in chosen)


def _farthest(others: Sequence[BrokerImage], chosen: Sequence[BrokerImage]) -> BrokerImage:
    """The first broker that shares its rack, then its machine, with the fewest of those chosen."""
    machines = Counter(map(machine_of, chosen))
    racks = Counter(broker.rack for broker in chosen)
    least = min(racks[rack] for rack in {broker.rack for broker in others}), 0
    best, best_shared = others[0], (len(chosen) + 1, 0)
    for broker in others:
        shared = racks[broker.rack], machines[machine_of(broker)]
        if shared < best_shared:
            best, best_shared = broker, shared
            if shared == least:
                break  # mostly the first: there are more machines than replicas
    return best


def replication_factor(wanted: NumberOrAuto, brokers: Iterable[BrokerImage]) -> int:
    """A number of replicas; `auto` is one on each machine with a live broker, up to three."""
    if wanted != AUTO:
        return wanted
    machines = len(set(map(machine_of, brokers)))
    return max(1, min(machines, _AUTO_MAX))


def added_replica(
    brokers: Iterable[BrokerImage], replicas: Sequence[BrokerId], load: Mapping[BrokerId, int]
) -> BrokerId | None:
    """The broker for one more replica: in another rack, on another machine, with least load."""
    by_id = {broker.id: broker for broker in brokers}
    present = [by_id[broker] for broker in replicas if broker in by_id]
    racks = Counter(broker.rack for broker in present)
    machines = Counter(map(machine_of, present))
    return min(
        by_id.keys() - set(replicas),
        key=lambda broker: (
            racks[by_id[broker].rack],
            machines[machine_of(by_id[broker])],
            load.get(broker, 0),
            broker,
        ),
        default=None,
    )


def replace_replicas(
    replicas: Sequence[BrokerId],
    leaving: Collection[BrokerId],
    candidates: Collection[BrokerId],
    sites: Mapping[BrokerId, Site],
    load: Counter[BrokerId],
) -> tuple[BrokerId, ...] | None:
    """The replicas with others in place of those that leave; None if too few brokers are there.

    Each is replaced by the candidate that shares its rack, then its machine, with the fewest other
    replicas, then by one on the least loaded machine. `load` counts the replicas of each broker,
    and is kept up to date.
    """
    result = list(replicas)
    for index, broker in enumerate(replicas):
        if broker not in leaving:
            continue
        others = [sites[one] for one in result if one != broker and one in sites]
        free = [sites[one] for one in candidates if one not in result]
        if not free:
            return None
        result[index] = min(free, key=_preference(others, candidates, sites, load)).id
    load.subtract(replicas)
    load.update(result)
    return tuple(result)


class _Preference(Protocol):
    def __call__(self, site: Site, /) -> tuple[float, ...]: ...


def _preference(
    others: Sequence[Site],
    candidates: Iterable[BrokerId],
    sites: Mapping[BrokerId, Site],
    load: Mapping[BrokerId, int],
) -> _Preference:
    """The order in which brokers are chosen for one more replica, the smallest first."""
    racks = Counter(one.rack for one in others)
    machines = Counter(map(machine_of, others))
    loads: defaultdict[str, list[int]] = defaultdict(list)
    for broker in candidates:
        loads[machine_of(sites[broker])].append(load[broker])

    def preference(site: Site) -> tuple[float, ...]:
        here = loads[machine_of(site)]
        average = sum(here) / len(here)
        shared = (racks[site.rack], machines[machine_of(site)])
        return (*shared, average, load[site.id], site.id)

    return preference


def machine_of(broker: Site) -> str:
    """The machine that a broker is on; one that does not say is on a machine of its own."""
    return broker.machine or f"of broker {broker.id}"
