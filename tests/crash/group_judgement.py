"""What must be true of a group whose members kept diaries.

A member *claims* a partition from the moment it is told that it owns it. The claim ends

* when the member says that it gives the partition up, which it does before the group knows;
* if the member was killed or frozen, at the signal: from then on it does nothing. One that wakes
  up may believe for a while that it still owns what others own now. Nobody can keep a zombie from
  reading what it has fetched; it must not be able to commit;
* if it was expelled without our doing, with the last commit that the broker accepted from it.

In any case a claim lasts until its last commit was asked for that the broker accepted. So a zombie
whose commit is accepted has a claim that overlaps with that of the new owner. No two claims on a
partition of one group may overlap.
"""

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a member noted. `offsets` are those read, or committed, or refused."""

    at_s: float
    what: str
    partitions: frozenset[Partition]
    offsets: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def parse(cls, at_s: float, what: str, facts: list[Any]) -> "Entry":
        if what == "read":
            topic, partition, offset = facts
            return cls(at_s, what, frozenset({(topic, partition)}), (((topic, partition), offset),))
        if what in {"committed", "refused"}:
            offsets = tuple(((topic, partition), offset) for topic, partition, offset in facts[0])
            return cls(at_s, what, frozenset(tp for tp, _ in offsets), offsets)
        return cls(at_s, what, frozenset((topic, partition) for topic, partition in facts[0]))


class Signal(NamedTuple):
    """What a test did to a member."""

    at_s: float
    signum: signal.Signals


@dataclass(frozen=True, slots=True)
class Diary:
    """All about one process."""

    entries: tuple[Entry, ...]
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A member and a partition, from when until when."""

    partition: Partition
    start_s: float
    end_s: float


def claims(diary: Diary) -> list[Claim]:
    return [
        claim
        for partition in sorted({p for entry in diary.entries for p in entry.partitions})
        for claim in _claims_on(partition, diary)
    ]


def _claims_on(partition: Partition, diary: Diary) -> Iterable[Claim]:
    about = [entry for entry in diary.entries if partition in entry.partitions]
    begins = [at for at, entry in enumerate(about) if entry.what == "assigned"]
    for begin, end in pairwise([*begins, len(about)]):
        yield _claim(partition, about[begin:end], diary.signals)


def _claim(partition: Partition, about: Sequence[Entry], signals: Sequence[Signal]) -> Claim:
    start_s = about[0].at_s
    ended = next((entry for entry in about if entry.what in {"revoked", "lost"}), None)
    accepted_s = max((e.at_s for e in about if e.what == "committed"), default=start_s)
    until_s = float("inf") if ended is None else ended.at_s
    stopped_s = next(
        (
            at_s
            for at_s, signum in signals
            if signum in {signal.SIGSTOP, signal.SIGKILL} and start_s <= at_s <= until_s
        ),
        None,
    )
    if stopped_s is not None:
        return Claim(partition, start_s, max(stopped_s, accepted_s))
    if ended is None or ended.what == "revoked":
        return Claim(partition, start_s, max(until_s, accepted_s))
    return Claim(partition, start_s, accepted_s)


def overlaps(diaries: Iterable[Diary]) -> list[tuple[Claim, Claim]]:
    """Pairs of claims of different processes on one partition that were there at once."""
    found = []
    by_partition: dict[Partition, list[tuple[Claim, int]]] = {}
    for number, diary in enumerate(diaries):
        for claim in claims(diary):
            by_partition.setdefault(claim.partition, []).append((claim, number))
    for made in by_partition.values():
        made.sort(key=lambda pair: pair[0].start_s)
        last, last_number = made[0]
        for claim, number in made[1:]:
            if number != last_number and claim.start_s < last.end_s:
                found.append((last, claim))
            if claim.end_s >= last.end_s:
                last, last_number = claim, number
    return found


def zombie_commits(diary: Diary) -> list[Entry]:
    """Commits that were accepted after a member woke up and before it owned anything anew."""
    found = []
    is_zombie = False
    events: list[Entry | Signal] = [*diary.entries, *diary.signals]
    for event in sorted(events, key=lambda event: event.at_s):
        match event:
            case Signal():
                is_zombie = is_zombie or event.signum is signal.SIGCONT
            case Entry(what="assigned"):
                is_zombie = False
            case Entry(what="committed") if is_zombie:
                found.append(event)
    return found


def refused_after_waking(diary: Diary) -> int:
    """How often a member that had been frozen tried to commit, and could not."""
    woken_s = min(
        (at_s for at_s, signum in diary.signals if signum is signal.SIGCONT), default=None
    )
    if woken_s is None:
        return 0
    return sum(1 for e in diary.entries if e.what == "refused" and e.at_s > woken_s)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """How often each record was read in a group."""

    counts: Counter[tuple[Partition, int]]

    @classmethod
    def of(cls, diaries: Iterable[Diary]) -> "Deliveries":
        return cls(
            Counter(
                offset
                for diary in diaries
                for entry in diary.entries
                if entry.what == "read"
                for offset in entry.offsets
            )
        )

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def repeated(self) -> int:
        return self.total - len(self.counts)

    def missing(self, partition: Partition, end: int) -> list[int]:
        """Offsets below `end` that nobody has read."""
        return [offset for offset in range(end) if (partition, offset) not in self.counts]


def acknowledged(diaries: Iterable[Diary]) -> dict[Partition, int]:
    """The furthest offset of each partition that a member was told is committed."""
    furthest: dict[Partition, int] = {}
    for diary in diaries:
        for entry in diary.entries:
            if entry.what == "committed":
                for partition, offset in entry.offsets:
                    furthest[partition] = max(offset, furthest.get(partition, 0))
    return furthest
