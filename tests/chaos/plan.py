"""The faults of a run and its sizes, drawn from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

KILLS: Final = ("kill_leader", "kill_lowest", "kill_random", "kill_store_leader")
CUTS: Final = (
    "isolate",  # a leader from the other machines; clients reach it
    "isolate_in",  # what others send to it is lost
    "isolate_out",  # what it sends to others is lost
    "cut_pair",  # two brokers from each other
    "cut_pair_one_way",
    "store_cut",  # a broker from every member of etcd
    "pause_leader",
    "pause_random",
    "pause_store_leader",
    "store_majority",  # two of three members of etcd are killed
)
POWER: Final = ("power_one", "power_all")
_KILL_S: Final = (0.2, 2.0)
_CUT_S: Final = (1.0, 12.0)  # shorter and longer than a session
_POWER_S: Final = (0.1, 10.0)


class Planned(NamedTuple):
    """One fault: what, for how long at least, and a number that chooses where."""

    kind: str
    lasts_s: float
    choice: int

    def __str__(self) -> str:
        return f"{self.kind} for {self.lasts_s:.1f} s, choice {self.choice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything: a run ends when it has all of it."""

    kills: int = 3
    cuts: int = 2
    power_one: int = 1
    power_all: int = 0
    records: int = 2_000
    transactions: int = 50
    rebalances: int = 2
    store_away_s: float = 8.0
    rate: int = 300  # records/s of all producers together
    transactors: int = 4
    transaction_rate: int = 20  # transactions/s, at most
    kill_gap_s: float = 120.0  # a busy machine decides nothing
    gap_s: float = 120.0


# What `make chaos` and `make nightly` run.
WHOLE: Final = Sizes(
    kills=60,
    cuts=40,
    power_one=15,
    power_all=5,
    records=1_000_000,
    transactions=20_000,
    rebalances=150,
    store_away_s=60.0,
    rate=1_000,
    transactors=12,
    transaction_rate=80,
    kill_gap_s=10.0,
    gap_s=20.0,
)


def draw(seed: int, sizes: Sizes) -> list[Planned]:
    """The faults of a run in their order; kinds take turns, so that each has its share."""
    rng = Random(f"chaos {seed}")
    faults = [
        *_of(rng, KILLS, sizes.kills, _KILL_S, sizes),
        *_of(rng, CUTS, sizes.cuts, _CUT_S, sizes),
        *_of(rng, POWER[:1], sizes.power_one, _POWER_S, sizes),
        *_of(rng, POWER[1:], sizes.power_all, _POWER_S, sizes),
    ]
    rng.shuffle(faults)
    return faults


def draw_kinds(seed: int, kinds: Sequence[str], sizes: Sizes) -> list[Planned]:
    """Faults of these kinds in this order."""
    rng = Random(f"chaos {seed}")
    found = []
    for kind in kinds:
        within_s = _KILL_S if kind in KILLS else _CUT_S if kind in CUTS else _POWER_S
        found += _of(rng, (kind,), 1, within_s, sizes)
    return found


def _of(
    rng: Random, kinds: tuple[str, ...], count: int, within_s: tuple[float, float], sizes: Sizes
) -> list[Planned]:
    order = rng.sample(kinds, len(kinds))
    found = []
    for number in range(count):
        kind, lasts_s = order[number % len(order)], rng.uniform(*within_s)
        if kind == "store_majority":
            lasts_s = sizes.store_away_s
        found.append(Planned(kind, lasts_s, rng.randrange(1 << 16)))
    return found
