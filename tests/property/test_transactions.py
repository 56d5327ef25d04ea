"""Transactions under any order of requests, answers that get lost, and crashes between records.

A client is one instance of a producer. The log is committed piece by piece; answers leave when
what they rest on is committed. A crash keeps what is committed and any number of the records
behind it, and loses every answer that had not left.
"""

from dataclasses import dataclass, replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.tickets import OWNER, FakeTicket
from ottla.coordinator.runtime.decision import Responses
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.records import (
    State,
    Transaction,
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
from sizes import examples

ID = "t"
TICKET = FakeTicket(1)
TIMEOUT_MS = 100
VERSIONS = [2, 0, 2]  # of the protocol, one client each
CLIENTS = st.sampled_from([0, 0, 0, 1, 1, 2])  # mostly left alone, so that something happens
PROMPT = st.sampled_from([True, True, True, False])  # is it committed at once?
PARTITIONS = [TopicPartition("t", index) for index in range(3)]
FOLLOWS = {
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
}


@dataclass
class Client:
    """An instance of a producer, as it sees itself."""

    number: int
    version: int
    identity: ProducerIdentity | None = None
    is_fenced: bool = False  # a later instance was given an identity
    is_waiting: bool = False  # for an answer; it has one request at a time


@dataclass
class Waiting:
    """Answers that leave when the log is committed up to `end`."""

    end: int
    client: Client | None
    is_fresh: bool  # an init that does not say who it is
    fences: bool  # and with it whoever was there before
    answers: Responses


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = Transactions(OWNER)
        self.reader = Transactions(OWNER)  # reads the log, record by record
        self.log: list[TransactionRecord] = []
        self.committed = 0
        self.waiting: list[Waiting] = []
        self.now_ms = 0
        self.clients = [Client(number, version) for number, version in enumerate(VERSIONS)]
        self.owners: dict[ProducerIdentity, int] = {}
        self.prepared: list[Transaction] = []  # told to the owner, who writes markers
        self.ids = count(0)

    # What clients do

    @rule(number=CLIENTS, tp=st.sampled_from(PARTITIONS), is_prompt=PROMPT)
    def add(self, number: int, tp: TopicPartition, is_prompt: bool) -> None:
        client = self.clients[number]
        if (producer := self.known(client)) is not None:
            decision = self.transactions.add(
                TICKET, ID, producer, [tp], client.version, self.now_ms
            )
            self.take(decision, client, is_prompt=is_prompt)

    @rule(number=CLIENTS, is_prompt=PROMPT)
    def commit(self, number: int, is_prompt: bool) -> None:
        self.end(self.clients[number], is_commit=True, is_prompt=is_prompt)

    @rule(number=CLIENTS, is_prompt=PROMPT)
    def abort(self, number: int, is_prompt: bool) -> None:
        self.end(self.clients[number], is_commit=False, is_prompt=is_prompt)

    def end(self, client: Client, *, is_commit: bool, is_prompt: bool) -> None:
        if (producer := self.known(client)) is None:
            return
        end = End(
            transactional_id=ID, producer=producer, is_commit=is_commit, version=client.version
        )
        decision = self.transactions.end(TICKET, end, self.now_ms)
        if _needs_id(decision):
            end = replace(end, unused_id=ProducerId(next(self.ids)))
            decision = self.transactions.end(TICKET, end, self.now_ms)
        self.take(decision, client, is_prompt=is_prompt, keeps_epoch=client.version < 2)

    @rule(number=CLIENTS, tp=st.sampled_from(PARTITIONS), is_commit=st.booleans(), is_prompt=PROMPT)
    def transact(self, number: int, tp: TopicPartition, is_commit: bool, is_prompt: bool) -> None:
        """What nearly always happens: something is added, and then the transaction ends."""
        self.add(number, tp, True)
        self.end(self.clients[number], is_commit=is_commit, is_prompt=is_prompt)

    @rule(number=CLIENTS, is_recovering=PROMPT, is_prompt=PROMPT)
    def init(self, number: int, is_recovering: bool, is_prompt: bool) -> None:
        """It begins again, or, having an identity, goes on with it after an error."""
        client = self.clients[number]
        if not client.is_waiting:
            expected = client.identity if is_recovering else None
            self.init_client(client, expected, is_prompt=is_prompt)

    def init_client(
        self, client: Client, expected: ProducerIdentity | None, *, is_prompt: bool
    ) -> None:
        init = Init(transactional_id=ID, timeout_ms=TIMEOUT_MS, expected=expected)
        decision = self.transactions.init(TICKET, init, self.now_ms)
        if _needs_id(decision):
            init = replace(init, unused_id=ProducerId(next(self.ids)))
            decision = self.transactions.init(TICKET, init, self.now_ms)
        self.take(decision, client, is_fresh=expected is None, is_prompt=is_prompt)

    def known(self, client: Client) -> ProducerIdentity | None:
        """Who the client is, unless it waits for an answer; a new one asks."""
        if client.identity is None and not client.is_waiting:
            self.init_client(client, None, is_prompt=True)
        return None if client.is_waiting else client.identity

    # What the world does

    @precondition(lambda self: not self.log)
    @rule(epoch=st.integers(2**15 - 5, 2**15 - 2))
    def be_old(self, epoch: int) -> None:
        """The id has been in use for a long time."""
        producer = ProducerIdentity(ProducerId(next(self.ids)), ProducerEpoch(epoch))
        record = Transaction(
            transactional_id=ID,
            producer=producer,
            timeout_ms=TIMEOUT_MS,
            changed_ms=TimestampMs(0),
        )
        self.transactions.replay(record, 0)
        self.take(TransactionDecision((record,)))

    @rule(duration_ms=st.integers(1, TIMEOUT_MS))
    def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.take(self.transactions.pass_time(self.now_ms))

    @precondition(lambda self: self.prepared)
    @rule()
    def write_markers(self) -> None:
        """Possibly for the second time: the one before did not live to say so."""
        for prepared in self.prepared:
            self.take(self.transactions.complete(TICKET, prepared, self.now_ms))
        self.prepared = []

    @precondition(lambda self: self.waiting)
    @rule()
    def commit_the_log(self) -> None:
        self.committed = len(self.log)
        self.release()

    @rule(lost=st.integers(0, 3))
    def crash(self, lost: int) -> None:
        kept = max(self.committed, len(self.log) - lost)
        del self.log[kept:]
        self.committed = kept
        for waiting in self.waiting:
            if waiting.client is not None:
                waiting.client.is_waiting = False  # its connection is gone; it will ask again
        self.waiting = []
        self.transactions, self.reader = Transactions(OWNER), Transactions(OWNER)
        for record in self.log:
            self.transactions.replay(record, self.now_ms)
            self.reader.replay(record, self.now_ms)
        self.transactions.end_load()
        self.prepared = self.transactions.prepared()

    # Bookkeeping

    def take(
        self,
        decision: TransactionDecision,
        client: Client | None = None,
        *,
        is_fresh: bool = False,
        is_prompt: bool = True,
        keeps_epoch: bool = False,
    ) -> None:
        """`keeps_epoch`: the producer itself ends its transaction, in the first protocol."""
        for record in decision.records:
            assert from_bytes(*to_bytes(record)) == record
            self.check_next(record, keeps_epoch=keeps_epoch)
            self.log.append(record)
            self.reader.replay(record, self.now_ms)
        if client is not None:
            client.is_waiting = True
        fences = is_fresh and bool(decision.records)
        self.waiting.append(Waiting(len(self.log), client, is_fresh, fences, decision.responses))
        if is_prompt:
            self.committed = len(self.log)
        self.release()

    def release(self) -> None:
        while self.waiting and self.waiting[0].end <= self.committed:
            waiting = self.waiting.pop(0)
            if waiting.client is not None:
                waiting.client.is_waiting = False
            for other in self.clients if waiting.fences else ():
                other.is_fenced |= other is not waiting.client and other.identity is not None
            for ticket, answer in waiting.answers:
                if ticket == OWNER:
                    assert isinstance(answer, Transaction)
                    self.prepared.append(answer)
                elif waiting.client is not None:
                    self.learn(waiting.client, answer, is_fresh=waiting.is_fresh)

    def learn(self, client: Client, answer: object, *, is_fresh: bool) -> None:
        producer = None
        if isinstance(answer, Identified):
            error, producer = answer
        else:
            assert isinstance(answer, ErrorCode)
            error = answer
        if error is not ErrorCode.NONE:
            return
        assert is_fresh or not client.is_fenced, "a fenced epoch never succeeds"
        if producer is None:
            return
        assert producer.epoch < 2**15 - 1, "the last epoch is kept for fencing"
        owner = self.owners.setdefault(producer, client.number)
        assert owner == client.number, "an identity has one owner"
        client.is_fenced = False
        client.identity = producer

    def check_next(self, record: TransactionRecord, *, keeps_epoch: bool) -> None:
        """A prepared transaction ends the way it was prepared, and epochs only rise."""
        assert isinstance(record, Transaction)
        if not self.log:
            return
        old = self.log[-1]
        assert isinstance(old, Transaction)
        assert record.state in FOLLOWS[old.state], (old, record)
        if record.producer.id == old.producer.id:
            assert record.producer.epoch >= old.producer.epoch
        else:
            assert record.producer.epoch == 0
        if record.is_prepared and not keeps_epoch:
            assert record.producer.epoch > old.producer.epoch, "what comes too late is refused"
        if old.is_prepared:
            assert record.partitions == frozenset()
        elif record.is_prepared and old.state is State.ONGOING:
            assert record.partitions == old.partitions, "every partition gets its marker"

    # What is always true

    @invariant()
    def the_state_is_what_the_log_says(self) -> None:
        assert self.reader.by_id == self.transactions.by_id

    @invariant()
    def nothing_that_is_open_is_without_a_deadline(self) -> None:
        known = self.transactions.by_id.get(ID)
        due_ms = self.transactions.next_deadline_ms()
        if known is not None and known.deadline_ms is not None:
            assert due_ms is not None
            assert due_ms <= known.deadline_ms


def _needs_id(decision: TransactionDecision) -> bool:
    return any(isinstance(answer, NeedsProducerId) for _, answer in decision.responses)


TransactionMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=50)
TestTransactions = TransactionMachine.TestCase
