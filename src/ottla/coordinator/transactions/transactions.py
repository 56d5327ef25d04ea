"""All transactional ids of one shard, and the state machine of each.

    Empty --add--> Ongoing --end--> PrepareCommit --markers written--> CompleteCommit --add--> ...
      ^               |                                                    |
      |               +--end, timeout, fence--> PrepareAbort --> CompleteAbort --add--> ...
      +--------------------------------init--------------------------------+

A prepared transaction is decided: it can only complete, in the way it was prepared, before and
after any crash. Everything else depends on the producer, which is its id and its epoch: only the
one in the log may add and end, and one that was replaced is fenced.

With version 2 of the protocol (KIP-890) every end also raises the epoch, and the markers carry
the new one: batches that an ended transaction sent too late are refused by every partition that
has a marker. A request may then be repeated by an identity that is already replaced. It gets the
same response again, for it is the last one that was replaced at its own request.

A transaction that times out is aborted in the same way, so its producer may learn of it by
repeating a request and go on in the next epoch (KIP-588); a producer that was fenced by a newer
one of the same transactional id may not.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from ottla.coordinator.runtime.decision import A, Decision, Response, Responses, Ticket, merge
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.records import (
    State,
    Transaction,
    TransactionDropped,
    TransactionRecord,
)
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

EPOCH_MAX: Final = ProducerEpoch(2**15 - 1)  # kept free, so that the last producer can be fenced
BUMPING_VERSION: Final = 2  # of the protocol: every end raises the epoch

TransactionDecision = Decision[TransactionRecord]


class Identified(NamedTuple):
    """The result of an init or an end: an error, or the producer that may write from now on."""

    error: ErrorCode
    producer: ProducerIdentity | None = None


class NeedsProducerId(NamedTuple):
    """The result of a request that has to be repeated with an unused producer id."""


IdentityTicket = Ticket[Identified | NeedsProducerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """InitProducerId of a new producer, or of `expected`, which goes on after an error."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    unused_id: ProducerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """EndTxn: commit or abort."""

    transactional_id: str
    producer: ProducerIdentity
    is_commit: bool
    version: int
    unused_id: ProducerId | None = None


@dataclass(slots=True)
class Transactions:
    """The machine of a shard: every event is a method call, with a ticket if it has a response.

    A prepared transaction is handed to `owner`, which writes the markers and then calls
    `complete`.
    """

    owner: Ticket[Transaction]  # gets every transaction that is prepared
    by_id: dict[str, Transaction] = field(default_factory=dict)
    _due: list[tuple[int, str]] = field(default_factory=list)

    # Producers

    def init(self, ticket: IdentityTicket, init: Init, now_ms: int) -> TransactionDecision:
        """Make a producer the only one of its transactional id, and abort what is open."""
        known = self.by_id.get(init.transactional_id)
        if known is None:
            return self._begin(ticket, init, None, now_ms)
        if init.expected not in {None, known.producer, known.last}:
            return _refuse(ticket, ErrorCode.PRODUCER_FENCED)
        if known.is_prepared:
            return _refuse(ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is State.ONGOING:
            fenced = _fence(known, init.expected, now_ms)
            return self._prepared(
                fenced, ticket.respond(Identified(ErrorCode.CONCURRENT_TRANSACTIONS))
            )
        if init.expected is not None and init.expected == known.last:
            return self._identify(ticket, known, init, known.producer, known.last, now_ms)
        if known.producer.epoch >= EPOCH_MAX - 1:
            return self._begin(ticket, init, known, now_ms)
        last = known.producer if init.expected is not None else None
        return self._identify(ticket, known, init, _raised(known.producer), last, now_ms)

    def _begin(
        self, ticket: IdentityTicket, init: Init, known: Transaction | None, now_ms: int
    ) -> TransactionDecision:
        """Assign a producer id that was never used, at its first epoch."""
        if init.unused_id is None:
            return _respond(ticket, NeedsProducerId())
        producer = ProducerIdentity(init.unused_id, ProducerEpoch(0))
        last = known.producer if known is not None and init.expected is not None else None
        return self._identify(ticket, known, init, producer, last, now_ms)

    def _identify(
        self,
        ticket: IdentityTicket,
        known: Transaction | None,
        init: Init,
        producer: ProducerIdentity,
        last: ProducerIdentity | None,
        now_ms: int,
    ) -> TransactionDecision:
        begun = Transaction(
            transactional_id=init.transactional_id,
            producer=producer,
            last=last,
            timeout_ms=init.timeout_ms,
            changed_ms=TimestampMs(now_ms),
            version=0 if known is None else known.version,
        )
        return self._replayed(begun, (ticket.respond(Identified(ErrorCode.NONE, producer)),))

    # Partitions

    def add(
        self,
        ticket: Ticket[ErrorCode],
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
        now_ms: int,
    ) -> TransactionDecision:
        """Add partitions to the producer's transaction, all or none; the first ones open it."""
        known = self.by_id.get(transactional_id)
        error = _check_producer(known, producer)
        if error is not ErrorCode.NONE or known is None:
            return _respond(ticket, error)
        if known.state is State.ONGOING and known.partitions.issuperset(partitions):
            return _respond(ticket, ErrorCode.NONE)
        is_open = known.state is State.ONGOING
        added = replace(
            known,
            state=State.ONGOING,
            last=None,  # a producer that writes knows its identity: it has nothing to repeat
            partitions=known.partitions.union(partitions) if is_open else frozenset(partitions),
            started_ms=known.started_ms if is_open else TimestampMs(now_ms),
            changed_ms=TimestampMs(now_ms),
            version=version,
        )
        return self._replayed(added, (ticket.respond(ErrorCode.NONE),))

    def verify(
        self,
        ticket: Ticket[list[ErrorCode]],
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
    ) -> TransactionDecision:
        """The response has an error for each partition that the transaction does not have."""
        known = self.by_id.get(transactional_id)
        error = _check_producer(known, producer)
        if error is not ErrorCode.NONE or known is None:
            return _respond(ticket, [error] * len(partitions))
        is_open = known.state is State.ONGOING
        errors = [
            ErrorCode.NONE if is_open and tp in known.partitions else _NOT_ADDED
            for tp in partitions
        ]
        return _respond(ticket, errors)

    # Ends

    def end(self, ticket: IdentityTicket, end: End, now_ms: int) -> TransactionDecision:
        """Prepare the end. The response does not wait for the markers."""
        known = self.by_id.get(end.transactional_id)
        bumps = end.version >= BUMPING_VERSION
        if known is not None and bumps and end.producer == known.last and _has_ended(known):
            return _respond(ticket, _repeated_end(known, end))
        error = _check_identity(known, end.producer)
        if error is not ErrorCode.NONE or known is None:
            return _refuse(ticket, error)
        if known.is_prepared:
            is_same = bumps or known.is_commit is end.is_commit
            concurrent, wrong = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
            return _refuse(ticket, concurrent if is_same else wrong)
        if known.state is not State.ONGOING and not (bumps and not end.is_commit):
            is_repeated = _has_ended(known) and not bumps and known.is_commit is end.is_commit
            error = ErrorCode.NONE if is_repeated else ErrorCode.INVALID_TXN_STATE
            return _respond(ticket, Identified(error, known.producer if is_repeated else None))
        if not bumps:
            state = State.PREPARE_COMMIT if end.is_commit else State.PREPARE_ABORT
            prepared = replace(
                _prepare(known, state, known.producer, known.last, now_ms),
                version=end.version,  # whatever version its partitions were added by
            )
            identified = Identified(ErrorCode.NONE, known.producer)
            return self._prepared(prepared, ticket.respond(identified))
        return self._end_epoch(ticket, known, end, now_ms)

    def _end_epoch(
        self, ticket: IdentityTicket, known: Transaction, end: End, now_ms: int
    ) -> TransactionDecision:
        """Prepare the end of a transaction and of its epoch; the last epoch needs a new id."""
        is_last = known.producer.epoch >= EPOCH_MAX - 1
        if is_last and end.unused_id is None:
            return _respond(ticket, NeedsProducerId())
        state = State.PREPARE_COMMIT if end.is_commit else State.PREPARE_ABORT
        is_open = known.state is State.ONGOING
        prepared = replace(
            _prepare(known, state, _raised(known.producer), known.producer, now_ms),
            next_id=end.unused_id if is_last else None,
            partitions=known.partitions if is_open else frozenset(),
            started_ms=known.started_ms if is_open else TimestampMs(now_ms),
            version=end.version,
        )
        identified = Identified(ErrorCode.NONE, _completed(prepared, now_ms).producer)
        return self._prepared(prepared, ticket.respond(identified))

    def complete(
        self, ticket: Ticket[bool], prepared: Transaction, now_ms: int
    ) -> TransactionDecision:
        """Note that every partition has its marker; the response is False if that was known."""
        if self.by_id.get(prepared.transactional_id) != prepared or not prepared.is_prepared:
            return _respond(ticket, False)
        return self._replayed(_completed(prepared, now_ms), (ticket.respond(True),))

    def prepared(self) -> list[Transaction]:
        """Transactions whose markers may not all be written: a crash leaves them prepared."""
        return [known for known in self.by_id.values() if known.is_prepared]

    # Administration

    def list(self, ticket: Ticket[list[Transaction]]) -> TransactionDecision:
        return _respond(ticket, list(self.by_id.values()))

    def describe(
        self, ticket: Ticket[Transaction | None], transactional_id: str
    ) -> TransactionDecision:
        """The response is None for an unknown id."""
        return _respond(ticket, self.by_id.get(transactional_id))

    # Time

    def next_deadline_ms(self) -> int | None:
        """The time at which `pass_time` may next change something."""
        return self._due[0][0] if self._due else None

    def pass_time(self, now_ms: int) -> TransactionDecision:
        """Abort transactions that have been open for longer than their timeout.

        One after the other: an id that began twice in the same millisecond has the same deadline
        twice, and once it is prepared the second one does not count.
        """
        decisions = [
            self._prepared(_fence(due, due.producer, now_ms)) for due in self._take_due(now_ms)
        ]
        return merge(decisions)

    def _take_due(self, now_ms: int) -> Iterator[Transaction]:
        while self._due and self._due[0][0] <= now_ms:
            due_ms, transactional_id = heappop(self._due)
            known = self.by_id.get(transactional_id)
            if known is not None and known.deadline_ms == due_ms:
                yield known

    def expire(self, ticket: Ticket[int], idle_ms: int, now_ms: int) -> TransactionDecision:
        """Drop ids that were not used for `idle_ms`. The response is their number."""
        records = tuple(
            TransactionDropped(known.transactional_id)
            for known in self.by_id.values()
            if known.changed_ms + idle_ms <= now_ms
            and not known.is_prepared
            and known.state is not State.ONGOING
        )
        for record in records:
            self.replay(record, now_ms)
        return Decision(records, (ticket.respond(len(records)),))

    # Replaying

    def replay(self, record: TransactionRecord, now_ms: int) -> None:
        """The record is the state of its id, so a crash cannot change it.

        A transaction that began in the future, by a clock that was set back while no broker ran,
        begins now: its timeout would end as much later as the clock was set back.
        """
        if isinstance(record, TransactionDropped):
            self.by_id.pop(record.transactional_id, None)
            return
        if record.state is State.ONGOING and record.started_ms > now_ms:
            record = replace(record, started_ms=TimestampMs(now_ms))
        known = self.by_id.get(record.transactional_id)
        self.by_id[record.transactional_id] = record
        deadline_ms = record.deadline_ms
        if deadline_ms is not None and (known is None or known.deadline_ms != deadline_ms):
            heappush(self._due, (deadline_ms, record.transactional_id))

    def end_load(self) -> None:
        """End a load: keep only the deadlines of transactions that are still open."""
        self._due = [
            (known.deadline_ms, transactional_id)
            for transactional_id, known in self.by_id.items()
            if known.deadline_ms is not None
        ]
        self._due.sort()

    def _prepared(self, prepared: Transaction, *responses: Response[Any]) -> TransactionDecision:
        """Prepare the end of a transaction, and have its owner write the markers."""
        known = self.by_id[prepared.transactional_id]
        assert prepared.version < BUMPING_VERSION or prepared.producer != known.producer, (
            f"{prepared.transactional_id}: a marker of version 2 has the epoch of its records"
        )
        return self._replayed(prepared, (*responses, self.owner.respond(prepared)))

    def _replayed(self, record: Transaction, responses: Responses) -> TransactionDecision:
        known = self.by_id.get(record.transactional_id)
        if known is not None:
            _check_successor(known, record)
        self.replay(record, record.changed_ms)
        return Decision((record,), responses)


_NOT_ADDED: Final = ErrorCode.TRANSACTION_ABORTABLE


def _respond(ticket: Ticket[A], value: A) -> TransactionDecision:
    return Decision(responses=(ticket.respond(value),))


def _refuse(ticket: IdentityTicket, error: ErrorCode) -> TransactionDecision:
    return _respond(ticket, Identified(error))


def _check_identity(known: Transaction | None, producer: ProducerIdentity) -> ErrorCode:
    if known is None or known.producer.id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer.epoch != producer.epoch or producer.epoch == EPOCH_MAX:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _check_producer(known: Transaction | None, producer: ProducerIdentity) -> ErrorCode:
    """The same for a producer that writes: not while the last transaction ends."""
    error = _check_identity(known, producer)
    if error is ErrorCode.NONE and known is not None and known.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return error


def _check_successor(known: Transaction, record: Transaction) -> None:
    """Assert that a decision may follow the present state of its transactional id."""
    if known.is_prepared:
        completed = State.COMPLETE_COMMIT if known.is_commit else State.COMPLETE_ABORT
        assert record.state is completed, (
            f"a prepared transaction only completes: {known.state.name} to {record.state.name}"
        )
    if record.producer.id == known.producer.id:
        assert record.producer.epoch >= known.producer.epoch, "a producer's epoch never goes back"


def _has_ended(known: Transaction) -> bool:
    return known.is_prepared or known.state in {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}


def _repeated_end(known: Transaction, end: End) -> Identified:
    if known.is_commit is not end.is_commit:
        return Identified(ErrorCode.INVALID_TXN_STATE)
    if known.is_prepared:
        return Identified(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Identified(ErrorCode.NONE, known.producer)


def _raised(producer: ProducerIdentity) -> ProducerIdentity:
    return producer._replace(epoch=ProducerEpoch(min(producer.epoch + 1, EPOCH_MAX)))


def _prepare(
    known: Transaction,
    state: State,
    producer: ProducerIdentity,
    last: ProducerIdentity | None,
    now_ms: int,
) -> Transaction:
    return replace(known, state=state, producer=producer, last=last, changed_ms=TimestampMs(now_ms))


def _fence(known: Transaction, successor: ProducerIdentity | None, now_ms: int) -> Transaction:
    """Abort what is open, under a new epoch, in which only `successor` may go on."""
    raised = _raised(known.producer)
    goes_on = successor == known.producer and raised.epoch < EPOCH_MAX
    last = known.producer if goes_on else None
    return _prepare(known, State.PREPARE_ABORT, raised, last, now_ms)


def _completed(prepared: Transaction, now_ms: int) -> Transaction:
    producer = prepared.producer
    if prepared.next_id is not None:
        producer = ProducerIdentity(prepared.next_id, ProducerEpoch(0))
    return replace(
        prepared,
        state=State.COMPLETE_COMMIT if prepared.is_commit else State.COMPLETE_ABORT,
        producer=producer,
        next_id=None,
        partitions=frozenset(),
        changed_ms=TimestampMs(now_ms),
    )
