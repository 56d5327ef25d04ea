"""Members of a group in processes of their own, and what they said."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from crash.group_judgement import Diary, Entry, Partition, Signal, acknowledged
from crash.load import Load, ends_of

SESSION_MS: Final = 10_000  # a busy machine can hold a process up for seconds
PATIENCE_S: Final = 90
_HEARTBEAT_MS: Final = 300
_PROGRAM: Final = Path(__file__).with_name("group_process.py")
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A client, and how its members agree on who reads what.

    A member that `wakes_honest` knows, when it wakes up from a long sleep, that it owns nothing.
    """

    client: str
    strategy: str
    wakes_honest: bool = True

    def __str__(self) -> str:
        return f"{self.client} {self.strategy}"


CLASSIC: Final = (
    Way("kafka-python", "range"),
    Way("confluent", "range"),
    Way("aiokafka", "roundrobin"),
    # Expelled, it joins again as the owner of all that it had, without saying of which generation
    # (KIP-792), and its assignor hands it partitions that others are reading.
    Way("kafka-python", "cooperative-sticky", wakes_honest=False),
    Way("confluent", "cooperative-sticky"),
)
CONSUMER: Final = Way("confluent", "consumer")  # KIP-848: the broker decides
# kafka-python 3.0.12 forgets a sync now and then (group_process.py) and gives up where a connection
# is refused; its members are part of runs that somebody looks at.
_LEFT_OUT: Final = frozenset() if os.environ.get("OTTLA_REBALANCE_ALL") else {"kafka-python"}


def ways() -> tuple[Way, ...]:
    return tuple(way for way in (*CLASSIC, CONSUMER) if way.client not in _LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by their names, or by a pattern; `partitions` is what either comes to."""

    topics: tuple[str, ...]
    pattern: str
    partitions: frozenset[Partition]


class Member:
    """One process. Its diary is written by the thread that listens to it."""

    def __init__(
        self, address: str, group: str, way: Way, subscription: Subscription, instance: str = ""
    ) -> None:
        self.instance = instance
        self.way = way
        self.owned: frozenset[Partition] = frozenset()
        self._is_told = False
        self.has_heard = False  # of an assignment, be it an empty one
        self.read_count = 0
        self.refused: list[tuple[float, str]] = []
        self._entries: list[Entry] = []
        self._signals: list[Signal] = []
        self._errors: list[str] = []
        settings = {
            "address": address,
            "group": group,
            "client": way.client,
            "strategy": way.strategy,
            "topics": subscription.topics,
            "pattern": subscription.pattern,
            "instance": instance,
            "session_ms": SESSION_MS,
            "heartbeat_ms": _HEARTBEAT_MS,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=_read, args=(self._process.stdout, self._take), daemon=True),
            threading.Thread(
                target=_read, args=(self._process.stderr, self._errors.append), daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        """What a failed test shows."""
        status, said = self._process.poll(), [e for e in self._entries if e.what != "read"][-6:]
        return f"Member({status=}, {sorted(self.owned)=}, {said=}, {self._errors[-40:]=})"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def diary(self) -> Diary:
        return Diary(tuple(self._entries), tuple(self._signals))

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def begin_leave(self) -> None:
        """Tell it to end as its user would, without waiting for that."""
        self._is_told = True
        self._process.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        if not self._is_told:  # the same word twice could kill it on its way out
            self.begin_leave()
        assert self._wait_over() == 0, self._errors

    def kill(self) -> None:
        if self.is_running:
            self._send(signal.SIGKILL)
        self._wait_over()

    def _send(self, signum: signal.Signals) -> None:
        self._signals.append(Signal(time.monotonic(), signum))
        self._process.send_signal(signum)

    def _wait_over(self) -> int:
        status = self._process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self.owned = frozenset()
        return status

    def _take(self, line: str) -> None:
        at_s, what, *facts = json.loads(line)
        entry = Entry.parse(at_s, what, facts)
        self._entries.append(entry)
        if what == "assigned":
            self.has_heard = True
            self.owned |= entry.partitions
        elif what in {"revoked", "lost"}:
            self.owned -= entry.partitions
        elif what == "read":
            self.read_count += 1
        elif what == "refused":
            self.refused.append((at_s, facts[1]))


class Group:
    """The members of one group, those that live and those that were."""

    def __init__(self, address: str, name: str, way: Way, subscription: Subscription) -> None:
        self.name = name
        self.way = way
        self.subscription = subscription
        self.living: list[Member] = []
        self.past: list[Member] = []
        self._address = address

    def __repr__(self) -> str:
        return f"{self.name} ({self.way}): {self.living}"

    @property
    def partitions(self) -> frozenset[Partition]:
        return self.subscription.partitions

    def diaries(self) -> list[Diary]:
        return [member.diary() for member in (*self.living, *self.past)]

    # What happens to it

    def join(self, instance: str = "") -> Member:
        member = Member(self._address, self.name, self.way, self.subscription, instance)
        self.living.append(member)
        return member

    def leave(self, member: Member) -> None:
        self._bury(member)
        member.leave()

    def begin_leave(self, member: Member) -> None:
        self._bury(member)
        member.begin_leave()

    def kill(self, member: Member) -> None:
        self._bury(member)
        member.kill()

    def restart(self, member: Member) -> Member:
        """A static member ends and comes back before anybody misses it."""
        self.leave(member)
        return self.join(member.instance)

    def leave_all(self) -> None:
        for member in self.living:
            member.begin_leave()
        for member in list(self.living):
            self.leave(member)

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        for member in (*self.living, *self.past):
            member.kill()

    def _bury(self, member: Member) -> None:
        self.living.remove(member)
        self.past.append(member)

    # What is waited for

    def wait_shared(self, *members: Member) -> None:
        """Return when each partition has one owner among these members, or all that live."""
        among: Sequence[Member] = members or self.living

        def is_shared() -> bool:
            owned = [partition for member in among for partition in member.owned]
            busy = sum(1 for member in among if member.owned)
            return (
                all(member.has_heard for member in among)
                and sorted(owned) == sorted(self.partitions)
                and busy == min(len(among), len(self.partitions))
            )

        self.wait(is_shared, "partitions are shared")

    def wait_reading(self) -> None:
        """Return when every member that owns something has read something since."""
        before = {id(member): member.read_count for member in self.living}
        self.wait(
            lambda: all(m.read_count > before[id(m)] for m in self.living if m.owned),
            "records come",
        )

    def wait_committed(self, ends: dict[Partition, int]) -> None:
        """Return when members know that everything is committed, however long they are at it."""
        wanted = {partition: ends[partition] for partition in self.partitions}
        while (known := acknowledged(self.diaries())) != wanted:
            self.wait(partial(self._has_moved, known), "more is committed")

    def _has_moved(self, known: dict[Partition, int]) -> bool:
        return acknowledged(self.diaries()) != known

    def wait(self, is_true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < deadline_s, f"{what}: not after {PATIENCE_S} s: {self}"
            time.sleep(_LOOK_S)


@contextmanager
def groups_of(groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
    try:
        yield groups
    finally:
        for group in groups:
            group.end()


@contextmanager
def groups_under_load(groups: Sequence[Group], load: Load) -> Iterator[dict[Partition, int]]:
    """Groups of two members that read what a load writes, until they have committed all of it.

    Yields the ends of the partitions, which are known once the block is left.
    """
    ends: dict[Partition, int] = {}
    with groups_of(groups):
        load.start()
        try:
            for group in groups:
                group.join()
                group.join()
            for group in groups:
                group.wait_shared()
            yield ends
        finally:
            load.stop()
        ends |= ends_of(load)
        for group in groups:
            group.wait_committed(ends)
            group.leave_all()


def _read(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
