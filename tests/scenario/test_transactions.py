"""Transactions, as text: see `transactions/*.txt`. Names of clients stand for producers.

Commands: init, be, add, verify, commit, abort, written, wait, describe, expire, crash, stored. A
client has the identity that it was last given; `as=ID/EPOCH` lets it use another. `written` says
that every partition of the prepared transaction has its marker; `stored` puts an identity into
the log that nobody waited for. What they print: `wrote` for every record, every answer, and
`markers` for what may now be sent.
"""

from itertools import count
from pathlib import Path
from typing import Final

import pytest

from fakes.tickets import OWNER, FakeTicket
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.records import (
    Transaction,
    TransactionDropped,
    TransactionRecord,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.transactions.transactions import (
    End,
    Identified,
    Init,
    NeedsProducerId,
    TransactionDecision,
    Transactions,
)
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from scenario import script
from scenario.script import Command

FOLDER: Final = Path(__file__).parent / "transactions"
ID: Final = "t"
FIRST_ID: Final = 100
TICKET: Final = FakeTicket(1)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script.check(path, TransactionScript().carry_out)


class TransactionScript:
    """One shard without its log, a clock that is moved by hand, and clients with names."""

    def __init__(self) -> None:
        self._transactions = Transactions(OWNER)
        self._now_ms = 0
        self._log: list[tuple[bytes, bytes | None]] = []
        self._identities: dict[str, ProducerIdentity] = {}
        self._ids = count(FIRST_ID)

    def carry_out(self, command: Command) -> list[str]:
        lines: list[str] = getattr(self, f"_{command.verb}")(command)
        return lines

    # Commands

    def _init(self, command: Command) -> list[str]:
        (client,) = command.words
        init = Init(
            transactional_id=ID,
            timeout_ms=int(command.named.get("timeout", 60_000)),
            expected=self._expected(client, command),
        )
        decision = self._transactions.init(TICKET, init, self._now_ms)
        if _needs_id(decision):
            unused = Init(
                transactional_id=ID,
                timeout_ms=init.timeout_ms,
                expected=init.expected,
                unused_id=ProducerId(next(self._ids)),
            )
            decision = self._transactions.init(TICKET, unused, self._now_ms)
        return self._show(client, decision)

    def _expected(self, client: str, command: Command) -> ProducerIdentity | None:
        if command.named.get("again") == "yes":
            return self._identity(client, command)
        return None

    def _be(self, command: Command) -> list[str]:
        """A client takes an identity that no request gave it."""
        (client,) = command.words
        self._identities[client] = _parse(command.named["as"])
        return []

    def _stored(self, command: Command) -> list[str]:
        (client,) = command.words
        self._be(command)
        producer = self._identities[client]
        record = Transaction(
            transactional_id=ID, producer=producer, timeout_ms=1000, changed_ms=TimestampMs(0)
        )
        self._log.append(to_bytes(record))
        return self._crash(command)

    def _add(self, command: Command) -> list[str]:
        client, *names = command.words
        decision = self._transactions.add(
            TICKET,
            ID,
            self._identity(client, command),
            [_partition(name) for name in names],
            int(command.named.get("version", 2)),
            self._now_ms,
        )
        return self._show(client, decision)

    def _verify(self, command: Command) -> list[str]:
        client, *names = command.words
        decision = self._transactions.verify(
            TICKET, ID, self._identity(client, command), [_partition(name) for name in names]
        )
        return self._show(client, decision)

    def _commit(self, command: Command) -> list[str]:
        return self._end(command, is_commit=True)

    def _abort(self, command: Command) -> list[str]:
        return self._end(command, is_commit=False)

    def _end(self, command: Command, *, is_commit: bool) -> list[str]:
        (client,) = command.words
        end = End(
            transactional_id=ID,
            producer=self._identity(client, command),
            is_commit=is_commit,
            version=int(command.named.get("version", 2)),
        )
        decision = self._transactions.end(TICKET, end, self._now_ms)
        if _needs_id(decision):
            unused = End(
                transactional_id=ID,
                producer=end.producer,
                is_commit=is_commit,
                version=end.version,
                unused_id=ProducerId(next(self._ids)),
            )
            decision = self._transactions.end(TICKET, unused, self._now_ms)
        return self._show(client, decision, keeps=command.named.get("answer") == "lost")

    def _written(self, command: Command) -> list[str]:
        prepared = self._transactions.prepared()
        if not prepared:
            return ["nothing is prepared"]
        return [
            line
            for one in prepared
            for line in self._show(
                "coordinator", self._transactions.complete(TICKET, one, self._now_ms)
            )
        ]

    def _wait(self, command: Command) -> list[str]:
        """Let time pass, stopping at each deadline on the way."""
        end_ms = self._now_ms + int(command.words[0])
        lines = []
        while (due_ms := self._transactions.next_deadline_ms()) is not None and due_ms <= end_ms:
            self._now_ms = max(self._now_ms, due_ms)
            shown = self._show("nobody", self._transactions.pass_time(self._now_ms))
            lines += [f"at {self._now_ms}:", *shown] if shown else []
        self._now_ms = end_ms
        return lines

    def _describe(self, command: Command) -> list[str]:
        known = self._transactions.by_id.get(ID)
        return ["nobody knows it" if known is None else _words(known)]

    def _expire(self, command: Command) -> list[str]:
        idle_ms = int(command.named["idle"])
        return self._show("chore", self._transactions.expire(TICKET, idle_ms, self._now_ms))

    def _crash(self, command: Command) -> list[str]:
        """The coordinator dies; another reads what was written down and goes on."""
        self._transactions = Transactions(OWNER)
        for key, value in self._log:
            record = from_bytes(key, value)
            assert record is not None
            self._transactions.replay(record, self._now_ms)
        self._transactions.end_load()
        goes_on = [f"markers {_words(one)}" for one in self._transactions.prepared()]
        return [*self._describe(command), *goes_on]

    # Names and words

    def _identity(self, client: str, command: Command) -> ProducerIdentity:
        if "as" in command.named:
            return _parse(command.named["as"])
        return self._identities[client]

    def _show(
        self, client: str, decision: TransactionDecision, *, keeps: bool = False
    ) -> list[str]:
        lines = [f"wrote {_record(record)}" for record in decision.records]
        self._log += map(to_bytes, decision.records)
        for ticket, answer in decision.responses:
            if ticket == OWNER:
                assert isinstance(answer, Transaction)
                lines.append(f"markers {_words(answer)}")
                continue
            if isinstance(answer, Identified) and answer.producer is not None and not keeps:
                self._identities[client] = answer.producer
            lines.append(f"{client}: {_word(answer)}")
        return lines


def _needs_id(decision: TransactionDecision) -> bool:
    return any(isinstance(answer, NeedsProducerId) for _, answer in decision.responses)


def _parse(text: str) -> ProducerIdentity:
    producer_id, epoch = map(int, text.split("/"))
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))


def _partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def _record(record: TransactionRecord) -> str:
    return "forgotten" if isinstance(record, TransactionDropped) else _words(record)


def _words(known: Transaction) -> str:
    words = [known.state.title, str(known.producer), *map(str, sorted(known.partitions))]
    if known.next_id is not None:
        words.append(f"next {known.next_id}")
    return " ".join(words)


def _word(answer: object) -> str:
    match answer:
        case Identified(ErrorCode.NONE, producer):
            return f"is {producer}"
        case Identified(error):
            return error.name
        case ErrorCode():
            return "ok" if answer is ErrorCode.NONE else answer.name
        case list():
            return " ".join(map(_word, answer))
        case _:
            return str(answer)
