"""A partition of a coordinator's topic as a replicated state machine."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.coordinator.runtime.confirmation import Confirmations
from ottla.coordinator.runtime.decision import A, Decision, RecordT, Response, Ticket
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.runtime.shard_log import COMMIT_S, ShardLog
from ottla.errors import ApiError, CoordinatorLoadInProgress, NotCoordinator, RequestTimedOut
from ottla.records.batch import Marker

log = logging.getLogger("ottla.coordinator")

_LATE_MS: Final = 250  # a timer that fires later than this shows that the loop was held up
_GRACE_S: Final = 0.25


class Machine(Protocol[RecordT]):
    """A state machine that a shard drives: events go in with a ticket, decisions come out.

    A decision is already replayed when it is returned: `replay` is the only way in which
    state that is written to the log changes.
    """

    def replay(self, record: RecordT, now_ms: int, /) -> None: ...

    def end_load(self) -> None: ...

    def next_deadline_ms(self) -> int | None: ...

    def pass_time(self, now_ms: int) -> Decision[RecordT]: ...


MachineT = TypeVar("MachineT", bound=Machine[Any])
Decide = Callable[[MachineT, Ticket[A], int], Decision[RecordT]]


class Shard(Generic[MachineT, RecordT]):
    """Decide, replay, append, wait for the commit, respond.

    A response leaves only when everything it could have seen is committed, so that no client
    learns what a crash could undo. Decisions of one turn of the loop share one append and one
    commit. If an append fails, the partition is lost or the disk is: the shard is dropped,
    waiting requests are sent to look for the coordinator again, and the log is read anew. There
    is nothing to roll back.

    A response without a record is held back until it is confirmed that no other broker has taken
    over (`confirmations`; without them at once). `on_drop` is called once when the shard can no
    longer be used.
    """

    def __init__(
        self,
        machine: MachineT,
        shard_log: ShardLog[RecordT],
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        on_drop: Callable[["Shard[MachineT, RecordT]"], None],
        confirmations: Confirmations | None = None,
    ) -> None:
        self.machine = machine
        self.log = shard_log
        self._now_ms = now_ms
        self._loop = loop
        self._on_drop = on_drop
        self._confirmations = confirmations
        self._is_loading = True
        self._is_dropped = False
        self.has_committed = False
        self._waiting: dict[Ticket[Any], None] = {}
        self._turn: _Commit[RecordT] | None = None  # decided in this turn, not appended yet
        self._commits: deque[_Commit[RecordT]] = deque()  # appended and not committed, in order
        self._commit_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_excused = False  # the timer was late, and deadlines got a grace period

    # Requests

    def submit(self, ticket: Ticket[A], decide: Decide[MachineT, A, RecordT]) -> None:
        """Have the machine decide about one event; its response goes to `ticket`.

        Raises an ApiError when the shard cannot be used; the ticket is then not kept.
        """
        self._check_usable()
        self._waiting[ticket] = None
        self._apply(decide(self.machine, ticket, self._now_ms()))

    async def run(self, decide: Decide[MachineT, A, RecordT]) -> A:
        """`submit` for coroutines: returns the response, or raises why there is none."""
        ticket: FutureTicket[A] = FutureTicket(self._loop)
        self.submit(ticket, decide)
        try:
            return await ticket.future
        finally:
            self._waiting.pop(ticket, None)

    def append_marker(
        self, record: RecordT, marker: Marker, producer: ProducerIdentity
    ) -> "asyncio.Future[None]":
        """Append the marker that ends a producer's transaction, and replay it as `record`.

        Decisions made before go into the log first. Raises an ApiError, and nothing has happened,
        or returns a future that is done when the marker is committed. Later responses wait for
        that too, for they may depend on it.
        """
        self._check_usable()
        self._write()
        if self._is_dropped:
            raise NotCoordinator("this broker coordinates no more")
        ticket: FutureTicket[None] = FutureTicket(self._loop)
        commit = self._begin_commit(_Commit(self._loop.time()))
        commit.responses.append(ticket.respond(None))
        self._waiting[ticket] = None
        try:
            self.log.append_marker(marker, producer, self._note_commit)
        except ApiError:
            self._commits.pop()
            del self._waiting[ticket]
            raise
        self.machine.replay(record, self._now_ms())
        self._set_timer()
        ticket.future.add_done_callback(_retrieve)  # the caller may have stopped waiting
        return ticket.future

    def _check_usable(self) -> None:
        if self._is_dropped:
            raise NotCoordinator("this broker coordinates no more")
        if self._is_loading:
            raise CoordinatorLoadInProgress("the log is being read")

    # Loading and dropping

    async def load(self, chunks: AsyncIterator[Iterable[RecordT]]) -> None:
        """Replay the log; requests are refused until then."""
        async for chunk in chunks:
            if self._is_dropped:
                return
            now_ms = self._now_ms()
            for record in chunk:
                self.machine.replay(record, now_ms)
        self.machine.end_load()
        self._is_loading = False
        self._set_timer()

    def drop(self) -> None:
        """Give up: waiting requests fail with NotCoordinator."""
        if self._is_dropped:
            return
        self._is_dropped = True
        for timer in (self._timer, self._commit_timer):
            if timer is not None:
                timer.cancel()
        self._turn = None
        self._commits.clear()
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting:
            ticket.fail(NotCoordinator("this broker coordinates no more"))
        self._on_drop(self)

    @property
    def is_dropped(self) -> bool:
        return self._is_dropped

    @property
    def is_loading(self) -> bool:
        return self._is_loading

    # Committing

    def _apply(self, decision: Decision[RecordT]) -> None:
        """Queue the records; keep the responses until all records so far are committed.

        The commit of what is written after a request came shows that this broker still leads.
        """
        records, responses = decision
        if records:
            if self._turn is None:
                self._turn = _Commit(self._loop.time())
                self._loop.call_soon(self._write)
            self._turn.records += records
        if self._turn is not None:
            self._turn.responses += responses
        elif self._commits:
            self._commits[-1].unconfirmed += responses
        else:
            self._respond_confirmed(responses)
        self._set_timer()

    def _write(self) -> None:
        commit, self._turn = self._turn, None
        if commit is None:
            return  # dropped meanwhile, or written before a marker
        self._begin_commit(commit)
        try:
            is_committed = self.log.append(commit.records, self._note_commit)
        except ApiError as problem:
            self._fail(problem)
            return
        if is_committed:
            self._note_commit(None)

    def _begin_commit(self, commit: "_Commit[RecordT]") -> "_Commit[RecordT]":
        self._commits.append(commit)
        if self._commit_timer is None:
            self._commit_timer = self._loop.call_later(COMMIT_S, self._check_commits)
        return commit

    def _note_commit(self, problem: ApiError | None) -> None:
        """Handle the commit, or failure, of the oldest append: they commit in their order."""
        if self._is_dropped:
            return
        if problem is None:
            self.has_committed = True
            commit = self._commits.popleft()
            self._respond(commit.responses)
            if commit.unconfirmed:
                self._respond_confirmed(commit.unconfirmed)
        else:
            self._fail(problem)

    def _check_commits(self) -> None:
        """Drop the shard if its oldest append has not committed in time."""
        self._commit_timer = None
        if not self._commits:
            return
        left_s = self._commits[0].decided_s + COMMIT_S - self._loop.time()
        if left_s <= 0:
            tp = self.log.partition.tp
            self._fail(RequestTimedOut(f"{tp} did not commit in {COMMIT_S:.0f} s"))
        else:
            self._commit_timer = self._loop.call_later(left_s, self._check_commits)

    def _fail(self, problem: ApiError) -> None:
        log.warning(
            "shard dropped, its records could not be written",
            extra={"tp": self.log.partition.tp, "reason": problem},
        )
        self.drop()

    def _respond_confirmed(self, responses: Sequence[Response[Any]]) -> None:
        """Respond with what is committed, once it is certain that no other broker has gone on."""
        confirmations = self._confirmations
        if responses and confirmations is not None and confirmations.is_needed:
            confirmations.hold(responses, self._respond, self._refuse)
        else:
            self._respond(responses)

    def _refuse(self, responses: Iterable[Response[Any]]) -> None:
        for ticket, _ in responses:
            if ticket in self._waiting:  # else its client has gone, or the shard was dropped
                del self._waiting[ticket]
                ticket.fail(NotCoordinator("another broker may coordinate by now"))

    def _respond(self, responses: Iterable[Response[Any]]) -> None:
        if self._is_dropped:
            return  # all of them were refused
        for ticket, value in responses:
            self._waiting.pop(ticket, None)
            ticket.deliver(value)

    # Time

    def _set_timer(self) -> None:
        """Set the only timer to the first deadline of anything in the machine."""
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._now_ms(), 0) / 1000
        self._timer = self._loop.call_later(delay_s, self._pass_time)

    def _pass_time(self) -> None:
        if self._is_dropped:
            return
        if not self._is_excused and self._now_ms() - self._timer_ms > _LATE_MS:
            # The loop was held up. Heartbeats that came meanwhile are unread: read them first.
            self._is_excused = True
            self._timer = self._loop.call_later(_GRACE_S, self._pass_time)
            return
        self._timer = None
        self._is_excused = False
        self._apply(self.machine.pass_time(self._now_ms()))


class FutureTicket(Ticket[A]):
    """A ticket whose response is the result of a future."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[A] = loop.create_future()

    def deliver(self, value: A) -> None:
        if not self.future.done():  # else the client has gone
            self.future.set_result(value)

    def fail(self, error: ApiError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _retrieve(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()


class _Commit(Generic[RecordT]):
    """Records that are committed together, and the responses that wait for it.

    The unconfirmed are to requests that came after the records were appended.
    """

    __slots__ = ("decided_s", "records", "responses", "unconfirmed")

    def __init__(self, decided_s: float) -> None:
        self.decided_s = decided_s
        self.records: list[RecordT] = []
        self.responses: list[Response[Any]] = []
        self.unconfirmed: list[Response[Any]] = []
