"""Groups, as text: see `groups/*.txt`. Names of clients stand for the ids that they were given.

Commands: settings, join, sync, heartbeat, leave, commit, pend, end, fetch, wait, describe, delete,
forget, expire, crash. `pend` commits in the transaction of a producer, `end` ends it.
What they print: every answer that leaves, in order, and `wrote` for every record.
"""

from itertools import count
from pathlib import Path
from typing import Final

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket, responses, written
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.descriptions import GroupDescription
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit, DeletedOffsets, FoundOffset, UnstableOffset
from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
    OffsetPending,
    Record,
    read_entry,
    to_bytes,
)
from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, ProducerEpoch, ProducerId, TopicPartition
from scenario import script
from scenario.script import Command

FOLDER: Final = Path(__file__).parent / "groups"
GROUP: Final = "g"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script.check(path, GroupScript().carry_out)


class GroupScript:
    """One shard without its log, a clock that is moved by hand, and clients with names."""

    def __init__(self) -> None:
        self._limits: dict[str, int] = {"initial_delay_ms": 0}
        self._numbers = count(1)
        self._groups = self._new_groups()
        self._now_ms = 0
        self._log: list[Entry | TransactionEnded] = []
        self._ids: dict[str, str] = {}  # client to member id
        self._instances: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._asked: dict[int, str] = {}  # ticket to client
        self._tickets = map(FakeTicket, count(1))

    def _new_groups(self) -> Groups:
        return Groups(lambda: GroupLimits(**self._limits), lambda: str(next(self._numbers)))

    def carry_out(self, command: Command) -> list[str]:
        lines: list[str] = getattr(self, f"_{command.verb}")(command)
        return lines

    # Commands

    def _settings(self, command: Command) -> list[str]:
        self._limits |= {name: int(value) for name, value in command.named.items()}
        return []

    def _join(self, command: Command) -> list[str]:
        (client,) = command.words
        named = command.named
        names = named.get("protocols", "range").split(",")
        topics = named.get("topics", "t").split(",")
        owned = {"t": [int(i) for i in named["owns"].split(",")]} if "owns" in named else None
        if "instance" in named:
            self._instances[client] = named["instance"]
        join = group_members.join(
            named.get("id", self._ids.get(client, "")),
            instance_id=self._instances.get(client),
            client_id=client,
            session_ms=int(named.get("session", 10_000)),
            rebalance_ms=int(named.get("rebalance", 60_000)),
            protocol_type=named.get("type", "consumer"),
            protocols={name: group_members.subscription(*topics, owned=owned) for name in names},
            version=int(named.get("version", 9)),
        )
        ticket = self._ticket(client)
        return self._show(self._groups.join(ticket, GROUP, join, self._now_ms))

    def _sync(self, command: Command) -> list[str]:
        client, *given = command.words
        named = command.named
        assignments = {
            self._id(name): content.encode()
            for name, content in (word.split(":") for word in given)
        }
        sync = group_members.sync(
            self._id(client),
            int(named.get("generation", self._generations.get(client, -1))),
            assignments,
            instance_id=self._instances.get(client),
            protocol_name=named.get("protocol"),
        )
        ticket = self._ticket(client)
        return self._show(self._groups.sync(ticket, GROUP, sync, self._now_ms))

    def _heartbeat(self, command: Command) -> list[str]:
        lines = []
        for client in command.words:
            generation = int(command.named.get("generation", self._generations.get(client, -1)))
            instance_id = self._instances.get(client)
            ticket = self._ticket(client)
            lines += self._show(
                self._groups.heartbeat(
                    ticket, GROUP, self._id(client), instance_id, generation, self._now_ms
                )
            )
        return lines

    def _leave(self, command: Command) -> list[str]:
        identities: list[tuple[str, str | None]] = [
            (self._id(client), None) for client in command.words
        ]
        if "instance" in command.named:
            identities = [("", command.named["instance"])]
        ticket = self._ticket(" ".join(command.words) or "admin")
        return self._show(self._groups.leave(ticket, GROUP, identities, self._now_ms))

    def _commit(self, command: Command) -> list[str]:
        (client,) = command.words
        committer, commits = self._commits(client, dict(command.named))
        ticket = self._ticket(client)
        return self._show(self._groups.commit(ticket, GROUP, committer, commits, self._now_ms))

    def _pend(self, command: Command) -> list[str]:
        named = dict(command.named)
        producer = _producer(named.pop("producer"))
        (client,) = command.words
        committer, commits = self._commits(client, named)
        ticket = self._ticket(client)
        return self._show(
            self._groups.commit_in_transaction(
                ticket, GROUP, producer, committer, commits, self._now_ms
            )
        )

    def _end(self, command: Command) -> list[str]:
        (word,) = command.words
        ended = TransactionEnded(_producer(command.named["producer"]), word == "commit")
        self._log.append(ended)
        self._groups.replay(ended, self._now_ms)
        return []

    def _commits(self, client: str, named: dict[str, str]) -> tuple[Committer, list[Commit]]:
        generation = int(named.pop("generation", self._generations.get(client, -1)))
        committer = Committer(
            member_id=self._ids.get(client, ""),
            instance_id=self._instances.get(client),
            generation=generation,
            version=int(named.pop("version", 9)),
        )
        return committer, [
            Commit(TopicPartition("t", int(name)), Offset(int(value)), NO_EPOCH, "")
            for name, value in named.items()
        ]

    def _fetch(self, command: Command) -> list[str]:
        """All that is committed; or partitions by number, as who asks for stable offsets sees."""
        offsets = self._groups.offsets
        if command.words:
            tps = [TopicPartition("t", int(word)) for word in command.words]
            return [_found(tp, offsets.fetch(GROUP, tp, is_stable=True)) for tp in tps]
        found = [_found(None, one) for one in offsets.fetch_all(GROUP)]
        return found or ["nothing is committed"]

    def _forget(self, command: Command) -> list[str]:
        tps = [TopicPartition("t", int(word)) for word in command.words]
        ticket = self._ticket("admin")
        return self._show(self._groups.delete_offsets(ticket, GROUP, tps, self._now_ms))

    def _wait(self, command: Command) -> list[str]:
        """Let time pass, stopping at each deadline on the way."""
        end_ms = self._now_ms + int(command.words[0])
        lines = []
        while (due_ms := self._groups.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._now_ms = max(self._now_ms, due_ms)
            shown = self._show(self._groups.pass_time(self._now_ms))
            lines += [f"at {self._now_ms}:", *shown] if shown else []
        self._now_ms = end_ms
        return lines

    def _describe(self, command: Command) -> list[str]:
        return self._show(self._groups.describe(self._ticket("admin"), GROUP))

    def _delete(self, command: Command) -> list[str]:
        ticket = self._ticket("admin")
        return self._show(self._groups.delete(ticket, GROUP, self._now_ms))

    def _expire(self, command: Command) -> list[str]:
        ticket = self._ticket("admin")
        retention_ms = int(command.named["retention"])
        return self._show(self._groups.expire(ticket, retention_ms, self._now_ms))

    def _crash(self, command: Command) -> list[str]:
        """The coordinator dies; another reads what was written down."""
        self._groups = self._new_groups()
        for entry in self._log:
            record = read_entry(entry)
            assert record is not None
            self._groups.replay(record, self._now_ms)
        self._groups.end_load()
        self._asked.clear()
        return self._describe(command)

    # Names and words

    def _ticket(self, client: str) -> FakeTicket:
        ticket = next(self._tickets)
        self._asked[ticket] = client
        return ticket

    def _id(self, client: str) -> str:
        return self._ids.get(client, client)

    def _name(self, member_id: str) -> str:
        """The client that has this id now; an id that nobody has any more as it is."""
        return next((c for c, known in self._ids.items() if known == member_id), member_id)

    def _show(self, decision: GroupDecision) -> list[str]:
        lines = []
        for ticket, answer in responses(decision):
            client = self._asked.pop(ticket)
            lines.append(f"{client}: {self._word(client, answer)}")
        records = written(decision)
        self._log += map(_entry, records)
        return [*(f"wrote {self._record(record)}" for record in records), *lines]

    def _word(self, client: str, answer: object) -> str:
        match answer:
            case Joined():
                return self._joined(client, answer)
            case Synced(error=ErrorCode.NONE):
                return f"assigned {answer.assignment.decode() or 'nothing'}"
            case Synced():
                return answer.error.name
            case ErrorCode():
                return "ok" if answer is ErrorCode.NONE else answer.name
            case DeletedOffsets():
                return self._word(client, list(answer.errors) or answer.error)
            case list():
                return " ".join(self._word(client, one) for one in answer)
            case GroupDescription():
                members = " ".join(
                    f"{self._name(m.member_id)}:{m.assignment.decode()}" for m in answer.members
                )
                protocol = f" {answer.protocol}" if answer.protocol else ""
                return f"{answer.state}{protocol} {members}".rstrip()
            case _:
                return str(answer)

    def _joined(self, client: str, joined: Joined) -> str:
        if joined.error in {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.NONE}:
            self._ids[client] = joined.member_id
        if joined.error is not ErrorCode.NONE:
            return joined.error.name
        self._generations[client] = joined.generation
        words = [f"joined generation {joined.generation} {joined.protocol}"]
        words.append("leads" if joined.leader == joined.member_id else "follows")
        if joined.members:
            words.append(" ".join(self._name(member_id) for member_id, _, _ in joined.members))
        if joined.skips_assignment:
            words.append("skip assignment")
        return ", ".join(words)

    def _record(self, record: Record) -> str:
        match record:
            case GroupStored():
                members = " ".join(
                    f"{self._name(m.member_id)}:{m.assignment.decode()}" for m in record.members
                )
                return f"generation {record.generation} {members or 'nobody'}"
            case OffsetCommitted():
                return f"{record.tp} at {record.offset}"
            case OffsetPending(producer, offset):
                return f"{offset.tp} at {offset.offset} if {producer.id} commits"
            case OffsetDropped(_, tp):
                return f"{tp} forgotten"
            case GroupDropped():
                return "group forgotten"
            case _:
                raise AssertionError(record)


def _producer(number: str) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(int(number)), ProducerEpoch(0))


def _entry(record: Record) -> Entry:
    return Entry(*to_bytes(record), record.producer if isinstance(record, OffsetPending) else None)


def _found(tp: TopicPartition | None, offset: FoundOffset) -> str:
    match offset:
        case UnstableOffset():
            return f"{offset.tp} is unstable"
        case OffsetCommitted():
            return f"{offset.tp} at {offset.offset}"
        case None:
            return f"{tp} is not committed"
