"""Members of groups that read what is committed, and programs that keep an offset in a group."""

import itertools
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from chaos.clients import SETTINGS, TIMEOUT_S, Worker
from fakes.consumed import position_of, value_of
from histories.history import Committed, History, Outcome, Read, Seen, Written
from ottla.model import TopicPartition

_BATCH: Final = 500
_POLL_S: Final = 0.2
_PAUSE_S: Final = 0.05
_SESSIONS: Final = itertools.count(1)
CLASSIC: Final[dict[str, str | int]] = {
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
    "partition.assignment.strategy": "cooperative-sticky",
}
CONSUMER: Final[dict[str, str | int]] = {"group.protocol": "consumer"}


class Commits:
    """Commits of all members, in the order in which they were begun."""

    def __init__(self) -> None:
        self._noted: list[tuple[float, int, Committed]] = []
        self._count = itertools.count()

    def note(self, begun_s: float, commit: Committed) -> None:
        self._noted.append((begun_s, next(self._count), commit))

    def in_order(self) -> list[Committed]:
        return [commit for _, _, commit in sorted(self._noted, key=lambda one: one[:2])]


class Member(Worker):
    """A member of a group: it commits what it has read, each time before it reads on."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        protocol: dict[str, str | int],
        history: History,
        commits: Commits,
        problems: list[str],
    ) -> None:
        super().__init__(name, problems)
        self._bootstrap = bootstrap
        self._group = group
        self._topics = list(topics)
        self._protocol = protocol
        self._history = history
        self._commits = commits
        self._sessions: dict[TopicPartition, int] = {}
        self.is_assigned = threading.Event()
        self._found: dict[TopicPartition, list[tuple[int, str]]] = {}

    def work(self) -> None:
        consumer = Consumer(
            {
                **SETTINGS,
                **self._protocol,
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # each partition has a committed offset
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.subscribe(
            self._topics,
            on_assign=self._note_assigned,
            on_revoke=lambda consumer, _: self._settle(consumer),
            on_lost=self._note_lost,
        )
        try:
            while not self.is_over.is_set():
                self._read(consumer)
                self._settle(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> None:
        """Read what there is, up to a limit."""
        wait_s = _POLL_S
        for _ in range(_BATCH):
            message = consumer.poll(wait_s)
            if message is None:
                return
            error = message.error()
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._problems.append(f"{self.name} lost its place: {error}")
            elif error is None:
                topic, partition, offset = position_of(message)
                records = self._found.setdefault(TopicPartition(topic, partition), [])
                records.append((offset, value_of(message).decode()))
                wait_s = 0.0

    def _note_assigned(self, consumer: Consumer, positions: list[Position]) -> None:
        self._note_read()
        for one in positions:
            self._sessions[TopicPartition(one.topic, one.partition)] = next(_SESSIONS)
        self.is_assigned.set()

    def _note_lost(self, consumer: Consumer, positions: list[Position]) -> None:
        self._note_read()  # not committed: another member reads it again

    def _settle(self, consumer: Consumer) -> None:
        """Note and commit what was read."""
        if ends := self._note_read():
            self._commit(consumer, ends)

    def _note_read(self) -> dict[TopicPartition, int]:
        """Note records by partition; returns where each partition is to be read on."""
        found, self._found = self._found, {}
        for tp, records in found.items():
            session = self._sessions.get(tp, 0)
            self._history.reads.append(
                Read(self.name, tp, tuple(records), True, session, self._group)
            )
        return {tp: records[-1][0] + 1 for tp, records in found.items()}

    def _commit(self, consumer: Consumer, ends: dict[TopicPartition, int]) -> None:
        begun_s = time.monotonic()
        outcomes = dict.fromkeys(ends, Outcome.UNKNOWN)
        try:
            done = consumer.commit(
                offsets=[Position(tp.topic, tp.partition, end) for tp, end in ends.items()],
                asynchronous=False,
            )
            for one in done or []:
                if one.error is None:
                    outcomes[TopicPartition(one.topic, one.partition)] = Outcome.DONE
        except KafkaException:
            pass  # whether it is committed is not known
        for tp, end in ends.items():
            self._commits.note(begun_s, Committed(self._group, tp, end, outcomes[tp]))


class Group:
    """Members of one group, one of which is replaced now and then."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topics: Sequence[str],
        protocol: dict[str, str | int],
        history: History,
        commits: Commits,
        problems: list[str],
        count: int = 2,
    ) -> None:
        self.name = name

        def make() -> Member:
            member = f"{name}.{next(self._numbers)}"
            return Member(member, bootstrap, name, topics, protocol, history, commits, problems)

        self._make = make
        self._numbers = itertools.count(1)
        self.members = [self._make() for _ in range(count)]
        self._gone: list[Member] = []

    def start(self) -> None:
        for member in self.members:
            member.start()

    def replace(self, rng: Random, is_over: threading.Event) -> bool:
        """One member leaves and another joins; True once the new one has partitions."""
        leaving = self.members.pop(rng.randrange(len(self.members)))
        leaving.ask_to_stop()
        leaving.join()
        self._gone.append(leaving)
        joining = self._make()
        self.members.append(joining)
        joining.start()
        until_s = time.monotonic() + 2 * TIMEOUT_S
        while not joining.is_assigned.wait(0.1):
            if is_over.is_set() or time.monotonic() > until_s:
                return False
        return True

    def stop(self) -> None:
        for member in self.members:
            member.ask_to_stop()
        for member in self.members:
            member.join()


class Churn(Worker):
    """Replaces members of groups: each time both groups' partitions are assigned anew."""

    def __init__(
        self, groups: Sequence[Group], pause_s: float, rng: Random, problems: list[str]
    ) -> None:
        super().__init__("churn", problems)
        self._groups = list(groups)
        self._pause_s = pause_s
        self._rng = rng
        self.count = 0

    def work(self) -> None:
        for group in itertools.cycle(self._groups):
            if self.is_over.wait(self._pause_s):
                return
            self.count += group.replace(self._rng, self.is_over)


class Ledger(Worker):
    """Stores ever higher offsets in a group of its own."""

    def __init__(
        self, bootstrap: str, tp: TopicPartition, history: History, problems: list[str]
    ) -> None:
        super().__init__("ledger", problems)
        self._consumer = offsets_of(bootstrap)
        self._tp = tp
        self._history = history

    def work(self) -> None:
        for offset in itertools.count(1):
            if self.is_over.wait(_PAUSE_S):
                break
            position, ended_s = Position(self._tp.topic, self._tp.partition, offset), None
            try:
                self._consumer.commit(offsets=[position], asynchronous=False)
                ended_s = time.monotonic()
            except KafkaException:
                pass  # whether it is stored is not known
            self._history.written.append(Written("ledger", offset, ended_s))
        self._consumer.close()


class Auditor(Worker):
    """Asks again and again what is stored there."""

    def __init__(
        self, bootstrap: str, tp: TopicPartition, history: History, problems: list[str]
    ) -> None:
        super().__init__("auditor", problems)
        self._consumer = offsets_of(bootstrap)
        self._tp = tp
        self._history = history

    def work(self) -> None:
        while not self.is_over.wait(_PAUSE_S):
            begun_s = time.monotonic()
            try:
                (found,) = self._consumer.committed(
                    [Position(self._tp.topic, self._tp.partition)], timeout=5.0
                )
            except KafkaException:
                continue
            if found.error is None:
                offset = found.offset if found.offset >= 0 else None
                self._history.seen.append(Seen("ledger", offset, begun_s))
        self._consumer.close()


def offsets_of(bootstrap: str) -> Consumer:
    """A consumer that reads nothing."""
    return Consumer(
        {
            **SETTINGS,
            "bootstrap.servers": bootstrap,
            "group.id": "ledger",
            "enable.auto.commit": False,
        }
    )
