"""One partition of a coordinator's topic as a replicated state machine."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.coordinator.decision import OWNER, Decision, RecordT, Ticket
from ottla.coordinator.log_entries import Entry, TransactionEnded
from ottla.coordinator.records import UnreadableRecord
from ottla.errors import ApiError, CoordinatorLoadInProgress, NotCoordinator

log = logging.getLogger("ottla.coordinator")

_LATE_MS: Final = 250  # a timer that is later than this tells of a loop that was held up
_GRACE_S: Final = 0.25

Append = Callable[[Sequence[RecordT]], "asyncio.Future[None]"]
Decode = Callable[[Entry | TransactionEnded], RecordT | None]


class Machine(Protocol[RecordT]):
    """What a shard drives: events go in with a ticket, decisions come out.

    A decision is already replayed when it is returned: `replay` is the only way in which
    anything that is written down changes.
    """

    def replay(self, record: RecordT, now_ms: int, /) -> None: ...

    def end_load(self) -> None: ...

    def next_deadline_ms(self) -> int | None: ...

    def pass_time(self, now_ms: int) -> Decision[RecordT]: ...


MachineT = TypeVar("MachineT", bound=Machine[Any])


class Shard(Generic[MachineT]):
    """Decide, replay, append, wait for the commit, answer.

    An answer leaves only when everything it could have seen is committed, so that nobody learns
    what a crash could undo. What is decided in one turn of the loop shares one append and one
    commit. If an append fails, the partition is lost or the disk is: the shard is dropped,
    whoever waits is told to look for the coordinator again, and the log is read anew. There is
    nothing to roll back.

    `append` queues records at once and resolves when they are committed; `decode` reads what the
    log holds, None for what this version does not know; `told` gets the answers that a machine
    addresses to its owner; `dropped` is called once when the shard can no longer be used.
    """

    def __init__(
        self,
        machine: MachineT,
        append: Append[Any],
        decode: Decode[Any],
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        dropped: Callable[["Shard[MachineT]"], None],
        told: Callable[[Any], None] = lambda answer: None,
    ) -> None:
        self.machine = machine
        self._append = append
        self._decode = decode
        self._now_ms = now_ms
        self._loop = loop
        self._dropped = dropped
        self._told = told
        self._is_loading = True
        self._is_dropped = False
        self._tickets = count(1)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._turn: _Commit | None = None  # decided in this turn of the loop, not appended yet
        self._commits: deque[_Commit] = deque()  # appended, not committed yet; in their order
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_excused = False  # the timer was late, and everybody got some time for it

    # Requests

    async def run(self, decide: Callable[[MachineT, Ticket, int], Decision[Any]]) -> Any:
        """The answer to one event, once it may be known.

        `decide` gets the machine, a ticket and the time. It may leave the ticket to be answered
        by a later event, as a join is by the last member to come.
        """
        self._check_usable()
        ticket = next(self._tickets)
        answer = self._waiting[ticket] = self._loop.create_future()
        self._take(decide(self.machine, ticket, self._now_ms()))
        try:
            return await answer
        finally:
            self._waiting.pop(ticket, None)

    def note_written(
        self, record: object, write: Callable[[], "asyncio.Future[None]"]
    ) -> "asyncio.Future[None]":
        """Replay a record that somebody else puts into the partition: the end of a transaction.

        What was decided before goes into the log first. `write` appends now, and its future is
        done when that is committed; if it refuses, nothing has happened. Whoever asks from now on
        is answered when the record is committed, for the answer may tell of it.
        """
        self._check_usable()
        self._write()
        if self._is_dropped:
            raise NotCoordinator("this broker coordinates no more")
        committed = write()
        self._commits.append(_Commit())
        self.machine.replay(record, self._now_ms())
        committed.add_done_callback(self._note_commit)
        self._set_timer()
        return committed

    def _check_usable(self) -> None:
        if self._is_dropped:
            raise NotCoordinator("this broker coordinates no more")
        if self._is_loading:
            raise CoordinatorLoadInProgress("the log is being read")

    # Its life

    async def load(self, chunks: AsyncIterator[Iterable[Entry | TransactionEnded]]) -> None:
        """Become what the log says; nobody is answered before."""
        unreadable_count = 0
        async for chunk in chunks:
            if self._is_dropped:
                return
            now_ms = self._now_ms()
            for entry in chunk:
                try:
                    record = self._decode(entry)
                except UnreadableRecord:
                    unreadable_count += 1
                    continue
                if record is not None:
                    self.machine.replay(record, now_ms)
        if unreadable_count:
            log.warning("unreadable records were left out", extra={"count": unreadable_count})
        self.machine.end_load()
        self._is_loading = False
        self._set_timer()

    def drop(self, error: ApiError | None = None) -> None:
        """Give up: everyone who waits is told to look for the coordinator again."""
        if self._is_dropped:
            return
        self._is_dropped = True
        if self._timer is not None:
            self._timer.cancel()
        self._turn = None
        self._commits.clear()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error or NotCoordinator("this broker coordinates no more"))
        self._dropped(self)

    @property
    def is_dropped(self) -> bool:
        return self._is_dropped

    @property
    def is_loading(self) -> bool:
        return self._is_loading

    # Committing

    def _take(self, outcome: Decision[Any]) -> None:
        """Queue what is to be written; keep the answers until all of it is committed."""
        if outcome.records:
            if self._turn is None:
                self._turn = _Commit()
                self._loop.call_soon(self._write)
            self._turn.records += outcome.records
        last = self._turn or (self._commits[-1] if self._commits else None)
        if last is None:
            self._release(outcome.answers)
        else:
            last.answers += outcome.answers
        self._set_timer()

    def _write(self) -> None:
        commit, self._turn = self._turn, None
        if commit is None:
            return  # dropped meanwhile
        self._commits.append(commit)
        try:
            committed = self._append(commit.records)
        except ApiError as problem:
            self._fail(problem)
            return
        committed.add_done_callback(self._note_commit)

    def _note_commit(self, committed: "asyncio.Future[None]") -> None:
        """Appends commit in their order, so this is the oldest one."""
        if self._is_dropped:
            committed.exception()  # seen, and of no interest
            return
        problem = committed.exception()
        if problem is None:
            self._release(self._commits.popleft().answers)
        elif isinstance(problem, ApiError):
            self._fail(problem)
        else:
            raise problem

    def _fail(self, problem: ApiError) -> None:
        log.warning("a shard could not write and is dropped", extra={"reason": problem})
        self.drop()

    def _release(self, answers: Iterable[tuple[Ticket, object]]) -> None:
        for ticket, answer in answers:
            if ticket == OWNER:
                self._told(answer)
                continue
            waiting = self._waiting.get(ticket)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    # Time

    def _set_timer(self) -> None:
        """One timer, at the first deadline of anything in the machine."""
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
            # The loop was held up. Heartbeats that came meanwhile wait to be read: hear them first.
            self._is_excused = True
            self._timer = self._loop.call_later(_GRACE_S, self._pass_time)
            return
        self._timer = None
        self._is_excused = False
        self._take(self.machine.pass_time(self._now_ms()))


class _Commit:
    """Records that are committed together, and who is answered then."""

    __slots__ = ("answers", "records")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.answers: list[tuple[Ticket, object]] = []
