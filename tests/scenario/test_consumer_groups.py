"""Groups of the newer protocol, as text: see `consumer_groups/*.txt`.

Names of clients stand for their member ids. `t:0,1 u:0` are partitions 0 and 1 of t, and 0 of u.

Commands: settings, topic, drop, beat, leave, away, join, sync, heartbeat, goodbye, commit, fetch,
unsubscribed, wait, describe, list, delete, expire, crash. What they print: every record, in Kafka's
kinds, as `wrote`, and every answer that leaves.

A `beat` says only what is named. Without an epoch of its own, a client that is not a member joins
with everything it has to say; one that is a member sends the epoch that it was told last. `own=`
says which partitions it has; `own=told` those that it was told last.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket, responses, written
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups import consumer_records as kinds
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.descriptions import ConsumerGroupDescription, GroupDescription
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit, DeletedOffsets
from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
    Record,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.groups.topics import Partitions, of_names, to_names
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, TopicPartition
from ottla.protocol.consumer_protocol import parse_assignment
from scenario import script
from scenario.script import Command

FOLDER: Final = Path(__file__).parent / "consumer_groups"
GROUP: Final = "g"
WORDS: Final = {"yes": True, "no": False}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script.check(path, ConsumerScript().carry_out)


class ConsumerScript:
    """One shard without its log, a clock that is moved by hand, and clients with names."""

    def __init__(self) -> None:
        self._limits = ConsumerLimits(classic=GroupLimits(initial_delay_ms=0))
        self._numbers = count(1)
        self._catalog = TopicCatalog()
        self._groups = self._new_groups()
        self._now_ms = 0
        self._log: list[tuple[bytes, bytes | None]] = []
        self._ids: dict[str, str] = {}  # client to member id, where they differ
        self._instances: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._told: dict[str, Partitions] = {}
        self._asked: dict[int, str] = {}
        self._tickets = map(FakeTicket, count(1))

    def _new_groups(self) -> Groups:
        return Groups(
            lambda: self._limits.classic,
            lambda: str(next(self._numbers)),
            consumer_limits=lambda group_id: self._limits,
            topics=lambda: self._catalog.image,
        )

    def carry_out(self, command: Command) -> list[str]:
        lines: list[str] = getattr(self, f"_{command.verb}")(command)
        return lines

    # The world

    def _settings(self, command: Command) -> list[str]:
        for name, value in command.named.items():
            self._limits = _changed(self._limits, name, value)
        return []

    def _topic(self, command: Command) -> list[str]:
        for name, partitions in command.named.items():
            if name in self._catalog.image.topics:
                self._catalog.grow(name, int(partitions))
            else:
                is_internal = name.startswith("__")
                self._catalog.create(name, int(partitions), is_internal=is_internal)
        return []

    def _drop(self, command: Command) -> list[str]:
        for name in command.words:
            self._catalog.delete(name)
        return []

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

    def _crash(self, command: Command) -> list[str]:
        """The coordinator dies; another reads what was written down."""
        self._groups = self._new_groups()
        for key, value in self._log:
            record = from_bytes(key, value)
            assert record is not None
            self._groups.replay(record, self._now_ms)
        self._groups.end_load()
        self._asked.clear()
        return self._describe(command)

    # Members of the newer protocol

    def _beat(self, command: Command) -> list[str]:
        return [line for client in command.words for line in self._beat_once(client, command)]

    def _beat_once(self, client: str, command: Command) -> list[str]:
        named = command.named
        epoch = int(named.get("epoch", self._epochs.get(client, 0)))
        if "instance" in named:
            self._instances[client] = named["instance"]
        topics = named.get("topics", "t" if epoch == 0 and "pattern" not in named else None)
        owned: Partitions | None = frozenset() if epoch == 0 else None
        if "own" in named:
            owned = self._partitions(client, named["own"])
        beat = ConsumerHeartbeat(
            member_id=named.get("id", self._ids.get(client, client)),
            epoch=epoch,
            instance_id=self._instances.get(client),
            rebalance_timeout_ms=int(named.get("rebalance", 60_000)) if epoch == 0 else None,
            topics=None if topics is None else frozenset(filter(None, topics.split(","))),
            pattern=named.get("pattern"),
            assignor=named.get("assignor"),
            owned=owned,
            makes_own_id=named.get("version", "1") == "1",
        )
        return self._send(client, beat)

    def _leave(self, command: Command) -> list[str]:
        return self._depart(command, -1)

    def _away(self, command: Command) -> list[str]:
        return self._depart(command, -2)

    def _depart(self, command: Command, epoch: int) -> list[str]:
        lines = []
        for client in command.words:
            instance_id = self._instances.get(client)
            member_id = self._ids.get(client, client)
            self._epochs.pop(client, None)
            lines += self._send(
                client, ConsumerHeartbeat(member_id=member_id, epoch=epoch, instance_id=instance_id)
            )
        return lines

    def _send(self, client: str, beat: ConsumerHeartbeat) -> list[str]:
        ticket = self._ticket(client)
        return self._show(self._groups.consumer_heartbeat(ticket, GROUP, beat, self._now_ms))

    # Members of the older protocol

    def _join(self, command: Command) -> list[str]:
        (client,) = command.words
        named = command.named
        if "instance" in named:
            self._instances[client] = named["instance"]
        owned = None
        if "own" in named:
            owned = to_names(self._partitions(client, named["own"]), self._catalog.image)
        names = named.get("protocols", "range").split(",")
        topics = named.get("topics", "t").split(",")
        join = group_members.join(
            named.get("id", self._ids.get(client, "")),
            instance_id=self._instances.get(client),
            client_id=client,
            session_ms=int(named.get("session", 10_000)),
            rebalance_ms=int(named.get("rebalance", 60_000)),
            protocol_type=named.get("type", "consumer"),
            protocols={name: group_members.subscription(*topics, owned=owned) for name in names},
            version=int(named.get("version", 3)),
        )
        return self._show(self._groups.join(self._ticket(client), GROUP, join, self._now_ms))

    def _sync(self, command: Command) -> list[str]:
        """With partitions, the client leads and says who gets what: `sync x x=t:0,1 y=u:0`."""
        (client,) = command.words
        assignments = {
            self._ids.get(name, name): group_members.assignment(
                to_names(self._partitions(name, text), self._catalog.image)
            )
            for name, text in command.named.items()
        }
        sync = group_members.sync(
            self._ids.get(client, client),
            self._epochs.get(client, -1),
            assignments,
            instance_id=self._instances.get(client),
        )
        return self._show(self._groups.sync(self._ticket(client), GROUP, sync, self._now_ms))

    def _heartbeat(self, command: Command) -> list[str]:
        lines = []
        for client in command.words:
            generation = int(command.named.get("generation", self._epochs.get(client, -1)))
            lines += self._show(
                self._groups.heartbeat(
                    self._ticket(client),
                    GROUP,
                    self._ids.get(client, client),
                    self._instances.get(client),
                    generation,
                    self._now_ms,
                )
            )
        return lines

    def _goodbye(self, command: Command) -> list[str]:
        identities = [(self._ids.get(client, client), None) for client in command.words]
        ticket = self._ticket(" ".join(command.words))
        return self._show(self._groups.leave(ticket, GROUP, list(identities), self._now_ms))

    # Offsets and administration

    def _commit(self, command: Command) -> list[str]:
        (client,) = command.words
        named = dict(command.named)
        committer = Committer(
            member_id=self._ids.get(client, "" if client == "admin" else client),
            instance_id=None,
            generation=int(named.pop("epoch", self._epochs.get(client, -1))),
            version=int(named.pop("version", 9)),
        )
        commits = [
            Commit(TopicPartition(name, 0), Offset(int(value)), NO_EPOCH, "")
            for name, value in named.items()
        ]
        ticket = self._ticket(client)
        return self._show(self._groups.commit(ticket, GROUP, committer, commits, self._now_ms))

    def _fetch(self, command: Command) -> list[str]:
        (client,) = command.words
        is_admin = client == "admin"
        decision = self._groups.fetch(
            self._ticket(client),
            GROUP,
            None,
            member_id=None if is_admin else self._ids.get(client, client),
            member_epoch=int(command.named.get("epoch", self._epochs.get(client, -1))),
        )
        return self._show(decision)

    def _unsubscribed(self, command: Command) -> list[str]:
        """OffsetDelete for partition 0 of some topics."""
        wanted = [TopicPartition(name, 0) for name in command.words]
        decision = self._groups.delete_offsets(self._ticket("admin"), GROUP, wanted, self._now_ms)
        return self._show(decision)

    def _describe(self, command: Command) -> list[str]:
        is_consumer = isinstance(self._groups.groups.get(GROUP), ConsumerGroup)
        ask = self._groups.describe_consumer if is_consumer else self._groups.describe
        return self._show(ask(self._ticket("admin"), GROUP))

    def _list(self, command: Command) -> list[str]:
        ((_, listed),) = self._groups.list(FakeTicket(0)).responses
        assert isinstance(listed, list)
        return [f"{g.group_id} {g.type} {g.protocol_type or '-'} {g.state}" for g in listed]

    def _delete(self, command: Command) -> list[str]:
        return self._show(self._groups.delete(self._ticket("admin"), GROUP, self._now_ms))

    def _expire(self, command: Command) -> list[str]:
        retention_ms = int(command.named["retention"])
        ticket = self._ticket("admin")
        return self._show(self._groups.expire(ticket, retention_ms, self._now_ms))

    # Names and words

    def _ticket(self, client: str) -> FakeTicket:
        ticket = next(self._tickets)
        self._asked[ticket] = client
        return ticket

    def _partitions(self, client: str, text: str) -> Partitions:
        if text == "told":
            return self._told.get(client, frozenset())
        named = {
            name: [int(index) for index in indexes.split(",")]
            for name, _, indexes in (word.partition(":") for word in filter(None, text.split("+")))
        }
        return of_names(named, self._catalog.image)

    def _text(self, partitions: Partitions) -> str:
        """Those of deleted topics are counted only."""
        named = sorted(to_names(partitions, self._catalog.image).items())
        words = [f"{name}:{','.join(map(str, found))}" for name, found in named]
        gone = len(partitions) - sum(len(found) for _, found in named)
        return "+".join(words + [f"{gone} of deleted topics"] * bool(gone)) or "nothing"

    def _name(self, member_id: str) -> str:
        return next((c for c, known in self._ids.items() if known == member_id), member_id)

    def _show(self, decision: GroupDecision) -> list[str]:
        records = written(decision)
        self._log += map(to_bytes, records)
        lines = [f"wrote {self._record(record)}" for record in records]
        for ticket, answer in responses(decision):
            client = self._asked.pop(ticket)
            lines.append(f"{client}: {self._word(client, answer)}")
        return lines

    def _word(self, client: str, answer: object) -> str:
        match answer:
            case ConsumerHeartbeatResult():
                return self._beaten(client, answer)
            case Joined():
                return self._joined(client, answer)
            case Synced(error=ErrorCode.NONE):
                named = parse_assignment(answer.assignment)
                assert named is not None
                self._told[client] = of_names(named, self._catalog.image)
                return f"assigned {self._text(self._told[client])}"
            case Synced():
                return answer.error.name
            case ErrorCode():
                return "ok" if answer is ErrorCode.NONE else answer.name
            case list():
                return " ".join(self._word(client, one) for one in answer) or "nothing"
            case OffsetCommitted():
                return f"{answer.tp} at {answer.offset}"
            case DeletedOffsets():
                return self._word(client, list(answer.errors) or answer.error)
            case ConsumerGroupDescription() | GroupDescription():
                return self._described(answer)
            case _:
                return str(answer)

    def _beaten(self, client: str, answer: ConsumerHeartbeatResult) -> str:
        if answer.error is not ErrorCode.NONE:
            return f"{answer.error.name}"
        if answer.epoch < 0:
            return "bye"
        if answer.member_id is not None:
            self._ids[client] = answer.member_id
        self._epochs[client] = answer.epoch
        if answer.assigned is None:
            return f"epoch {answer.epoch}"
        self._told[client] = answer.assigned
        return f"epoch {answer.epoch}, {self._text(answer.assigned)}"

    def _joined(self, client: str, joined: Joined) -> str:
        if joined.error in {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.NONE}:
            self._ids[client] = joined.member_id
        if joined.error is not ErrorCode.NONE:
            return joined.error.name
        self._epochs[client] = joined.generation
        role = "leads" if joined.leader == joined.member_id else "follows"
        return f"joined generation {joined.generation} {joined.protocol}, {role}"

    def _described(self, found: ConsumerGroupDescription | GroupDescription) -> str:
        if isinstance(found, GroupDescription):
            names = " ".join(self._name(m.member_id) for m in found.members)
            return f"classic {found.state} {names}".rstrip()
        members = " ".join(
            f"{self._name(m.member_id)}({m.epoch}{' classic' if m.is_classic else ''}):"
            f"{self._text(m.assigned)}"
            + (f"->{self._text(m.target)}" if m.target != m.assigned else "")
            for m in found.members
        )
        return f"{found.state} epoch {found.epoch}/{found.target_epoch} {members}".rstrip()

    def _record(self, record: Record) -> str:
        match record:
            case kinds.EpochSet():
                return f"epoch {record.epoch}"
            case kinds.MemberStored():
                wants = "+".join((*record.topics, record.pattern or "")).strip("+")
                protocol = " classic" if record.classic is not None else ""
                return f"member {self._name(record.member_id)}{protocol} wants {wants}"
            case kinds.TargetEpochSet():
                return f"targets of epoch {record.epoch}"
            case kinds.TargetSet():
                return f"target {self._name(record.member_id)} {self._text(record.partitions)}"
            case kinds.CurrentSet():
                revoking = f" without {self._text(record.revoking)}" if record.revoking else ""
                return (
                    f"current {self._name(record.member_id)} epoch {record.epoch}"
                    f" {record.state.name} {self._text(record.assigned)}{revoking}"
                )
            case kinds.PatternResolved():
                return f"pattern {record.pattern} is {'+'.join(record.topics) or 'nothing'}"
            case _:
                return self._forgotten(record)

    def _forgotten(self, record: Record) -> str:
        match record:
            case kinds.MemberDropped() | kinds.TargetDropped() | kinds.CurrentDropped():
                kind = type(record).__name__.removesuffix("Dropped").lower()
                return f"{kind} {self._name(record.member_id)} forgotten"
            case kinds.PatternDropped():
                return f"pattern {record.pattern} forgotten"
            case kinds.EpochDropped():
                return "epoch forgotten"
            case kinds.TargetEpochDropped():
                return "targets' epoch forgotten"
            case _:
                return self._older_record(record)

    def _older_record(self, record: Record) -> str:
        match record:
            case GroupStored():
                members = " ".join(
                    f"{self._name(m.member_id)}:{self._bytes(m.assignment)}" for m in record.members
                )
                return f"generation {record.generation} {members or 'nobody'}"
            case OffsetCommitted():
                return f"{record.tp} at {record.offset}"
            case OffsetDropped(_, tp):
                return f"{tp} forgotten"
            case GroupDropped():
                return "classic group forgotten"
            case _:
                raise AssertionError(record)

    def _bytes(self, assignment: bytes) -> str:
        named = parse_assignment(assignment)
        assert named is not None
        return self._text(of_names(named, self._catalog.image))


def _changed(limits: ConsumerLimits, name: str, value: str) -> ConsumerLimits:
    match name:
        case "allows_downgrade":
            return replace(limits, allows_downgrade=WORDS[value])
        case "allows_upgrade":
            return replace(limits, allows_upgrade=WORDS[value])
        case "assignors":
            return replace(limits, assignors=tuple(value.split(",")))
        case "members_max":
            return replace(limits, members_max=int(value))
        case "session_timeout_ms":
            return replace(limits, session_timeout_ms=int(value))
        case _:
            raise AssertionError(name)
