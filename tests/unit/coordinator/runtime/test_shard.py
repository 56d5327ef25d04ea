"""An answer leaves only when everything it could have seen is committed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, Unpack, cast

import pytest

from fakes import group_members as said
from fakes.virtual_loop import VirtualLoop
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit
from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupEvent,
    OffsetCommitted,
    OffsetDropped,
)
from ottla.coordinator.runtime.confirmation import Confirmations, Held
from ottla.coordinator.runtime.decision import Response
from ottla.coordinator.runtime.log_entries import ProducerIdentity, TransactionEnded
from ottla.coordinator.runtime.shard import FutureTicket, Shard
from ottla.coordinator.runtime.shard_log import COMMIT_S, OnCommit, ShardLog
from ottla.errors import CoordinatorLoadInProgress, ErrorCode, NotCoordinator, StorageFailed
from ottla.model import NO_EPOCH, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from ottla.records.batch import Marker, MarkerKind
from ottla.replication.partition import LeaderPartition

TP = TopicPartition("t", 0)


class FakeLog(ShardLog[GroupEvent]):
    """Keeps what is appended; commits when the test says so."""

    def __init__(self) -> None:
        self.partition = cast("LeaderPartition", SimpleNamespace(tp=TP))
        self.appends: list[list[GroupEvent]] = []
        self.waiting: list[OnCommit] = []
        self.is_broken = False
        self._appended = asyncio.Event()

    async def wait_append(self) -> None:
        await self._appended.wait()

    def append(self, records: Sequence[GroupEvent], on_commit: OnCommit) -> bool:
        if self.is_broken:
            raise StorageFailed("the disk is full")
        self.appends.append(list(records))
        self._appended.set()
        self.waiting.append(on_commit)
        return False

    def append_marker(
        self, marker: Marker, producer: ProducerIdentity, on_commit: OnCommit
    ) -> None:
        ended = TransactionEnded(producer, marker.kind is MarkerKind.COMMIT)
        self.append([ended], on_commit)

    def commit(self) -> None:
        """Commit the oldest append that is not committed."""
        self.waiting.pop(0)(None)

    def lose(self) -> None:
        self.waiting.pop(0)(StorageFailed("the disk failed"))


class Bench:
    """A loaded shard, its log, a clock that stands still, and what it was dropped with."""

    def __init__(self, confirmations: Confirmations | None = None) -> None:
        self.log = FakeLog()
        self.now_ms = 1000
        self.dropped: list[Shard[Groups, GroupEvent]] = []
        ids = count(1)
        limits = GroupLimits(initial_delay_ms=0, session_timeout_min_ms=0)
        self.shard = Shard(
            Groups(lambda: limits, lambda: str(next(ids))),
            self.log,
            lambda: self.now_ms,
            asyncio.get_running_loop(),
            self.dropped.append,
            confirmations,
        )

    async def loaded(self, *records: GroupEvent) -> "Bench":
        await self.shard.load(chunks(records))
        return self

    def commit(self, offset: int, group_id: str = "g") -> "asyncio.Task[list[ErrorCode]]":
        committer = Committer(member_id="", instance_id=None, generation=-1, version=9)
        commit = Commit(TP, Offset(offset), NO_EPOCH, "")
        return asyncio.ensure_future(
            self.shard.run(
                lambda g, ticket, now_ms: g.commit(ticket, group_id, committer, [commit], now_ms)
            )
        )

    def fetch(self) -> "asyncio.Task[list[OffsetCommitted | None]]":
        return asyncio.ensure_future(
            self.shard.run(lambda g, ticket, now_ms: g.fetch(ticket, "g", [TP]))
        )

    def join(self, **more: Unpack[said.JoinOptions]) -> "asyncio.Task[Joined]":
        join = said.join(version=3, **more)
        return asyncio.ensure_future(
            self.shard.run(lambda g, ticket, now_ms: g.join(ticket, "g", join, now_ms))
        )


async def chunks(*parts: Sequence[GroupEvent]) -> AsyncIterator[Sequence[GroupEvent]]:
    for part in parts:
        yield part


async def settle() -> None:
    """Let everything happen that can happen without the log."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]], timeout_s: float = 10) -> None:
    async def main() -> None:
        async with asyncio.timeout(timeout_s):
            await scenario()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_a_commit_is_answered_when_it_is_committed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(5)
        await settle()
        assert len(bench.log.appends) == 1
        assert not committed.done()
        bench.log.commit()
        assert await committed == [ErrorCode.NONE]

    run(scenario)


def test_what_is_decided_in_one_turn_of_the_loop_is_one_append() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        commits = [bench.commit(offset) for offset in range(10)]
        await settle()
        assert [len(records) for records in bench.log.appends] == [10]
        bench.log.commit()
        assert await asyncio.gather(*commits) == [[ErrorCode.NONE]] * 10

    run(scenario)


def test_an_answer_without_records_waits_for_what_it_could_have_seen() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        bench.commit(5)
        await settle()
        fetched = bench.fetch()
        await settle()
        assert not fetched.done(), "it tells of an offset that a crash could undo"
        bench.log.commit()
        (found,) = await fetched
        assert found is not None
        assert found.offset == 5
        await asyncio.wait_for(bench.fetch(), 1)

    run(scenario)


def test_a_later_append_does_not_answer_an_earlier_one() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        first = bench.commit(1)
        await settle()
        second = bench.commit(2)
        await settle()
        assert len(bench.log.appends) == 2
        bench.log.commit()
        await settle()
        assert first.done()
        assert not second.done()
        bench.log.commit()
        await second

    run(scenario)


@pytest.mark.parametrize("is_refused_at_once", [True, False])
def test_a_failed_append_drops_the_shard_and_tells_everyone(is_refused_at_once: bool) -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        bench.join()
        waiting = bench.join(session_ms=5000)
        await settle()
        bench.log.is_broken = is_refused_at_once
        committed = bench.commit(1, "other")
        await settle()
        if not is_refused_at_once:
            bench.log.lose()
        for task in (committed, waiting):
            with pytest.raises(NotCoordinator):
                await task
        assert bench.dropped == [bench.shard]
        with pytest.raises(NotCoordinator):
            await bench.fetch()

    run(scenario)


def test_nobody_is_answered_before_the_log_is_read() -> None:
    async def scenario() -> None:
        bench = Bench()
        with pytest.raises(CoordinatorLoadInProgress):
            await bench.fetch()
        await bench.loaded(
            OffsetCommitted(group_id="g", tp=TP, offset=Offset(7), committed_ms=TimestampMs(1))
        )
        (found,) = await bench.fetch()
        assert found is not None
        assert found.offset == 7

    run(scenario)


def test_a_load_forgets_what_was_dropped() -> None:
    async def scenario() -> None:
        bench = Bench()
        committed = OffsetCommitted(
            group_id="g", tp=TP, offset=Offset(7), committed_ms=TimestampMs(1)
        )
        await bench.shard.load(chunks([committed], [OffsetDropped("g", TP), GroupDropped("g")]))
        assert await bench.fetch() == [None]
        assert bench.shard.machine.groups == {}

    run(scenario)


def test_time_passes_by_one_timer_without_anybody_asking() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        joined = bench.join(session_ms=20)
        assert (await joined).generation == 1
        bench.now_ms += 1_000_000
        await bench.log.wait_append()  # the member is gone, which is written down

    run(scenario)


def test_whenever_the_loop_was_held_up_members_are_heard_before_they_are_missed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        joined = await bench.join(session_ms=20)
        for _ in range(2):
            bench.now_ms += 5_000  # what was sent meanwhile is read behind the timer
            await asyncio.sleep(0.1)  # virtual: the timer was late, and the grace is not over
            beaten: ErrorCode = await bench.shard.run(
                lambda g, ticket, now_ms: g.heartbeat(
                    ticket, "g", joined.member_id, None, joined.generation, now_ms
                )
            )
            assert beaten is not ErrorCode.UNKNOWN_MEMBER_ID
            await asyncio.sleep(0.3)  # the grace is over
        assert not bench.log.appends

    run(scenario)


def test_whoever_gave_up_waiting_is_not_missed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await settle()
        committed.cancel()
        await settle()
        bench.log.commit()
        (found,) = await bench.fetch()
        assert found is not None

    run(scenario)


def test_a_dropped_shard_ignores_commits_and_timers() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await settle()
        bench.shard.drop()
        bench.shard.drop()
        bench.log.commit()
        with pytest.raises(NotCoordinator):
            await committed
        assert len(bench.dropped) == 1
        assert bench.shard.is_dropped

    run(scenario)


def test_an_empty_outcome_is_answered_at_once() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        answer: int = await bench.shard.run(
            lambda g, ticket, now_ms: GroupDecision((), (ticket.respond(now_ms),))
        )
        assert answer == bench.now_ms

    run(scenario)


def test_a_ticket_of_the_owner_gets_its_response_when_it_is_committed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        bench.commit(1)
        await settle()
        owner = FutureTicket[str](asyncio.get_running_loop())
        bench.shard.submit(
            FutureTicket[None](asyncio.get_running_loop()),
            lambda g, ticket, now_ms: GroupDecision(
                (), (ticket.respond(None), owner.respond("go on"))
            ),
        )
        await settle()
        assert not owner.future.done()
        bench.log.commit()
        assert await owner.future == "go on"

    run(scenario)


PRODUCER = ProducerIdentity(ProducerId(9), ProducerEpoch(1))
ABORT = Marker(MarkerKind.ABORT, 5)
ABORTED = TransactionEnded(PRODUCER, is_committed=False)


def test_a_marker_is_behind_what_was_decided_and_holds_responses_back() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await asyncio.sleep(0)  # decided, and not written yet
        marked = bench.shard.append_marker(ABORTED, ABORT, PRODUCER)
        assert [type(records[0]) for records in bench.log.appends] == [
            OffsetCommitted,
            TransactionEnded,
        ]
        fetched = bench.fetch()
        bench.log.commit()
        assert await committed == [ErrorCode.NONE]
        await settle()
        assert not marked.done()
        assert not fetched.done(), "it tells of a record that a crash could undo"
        bench.log.commit()
        await marked
        (found,) = await fetched
        assert found is not None

    run(scenario)


def test_a_marker_that_could_not_be_written_has_not_happened() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await settle()
        bench.log.commit()
        await committed
        bench.log.is_broken = True
        with pytest.raises(StorageFailed):
            bench.shard.append_marker(ABORTED, ABORT, PRODUCER)
        (found,) = await bench.fetch()
        assert found is not None
        assert not bench.shard.is_dropped

    run(scenario)


def test_a_marker_fails_with_its_shard() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        marked = bench.shard.append_marker(ABORTED, ABORT, PRODUCER)
        bench.shard.drop()
        with pytest.raises(NotCoordinator):
            await marked
        bench.log.commit()

    run(scenario)


def test_an_append_that_does_not_commit_in_time_drops_the_shard() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        committed = bench.commit(1)
        await asyncio.sleep(COMMIT_S / 2)
        later = bench.commit(2)
        for task in (committed, later):
            with pytest.raises(NotCoordinator):
                await task
        assert loop.time() - begun_s == pytest.approx(COMMIT_S, abs=0.1)
        assert bench.dropped == [bench.shard]

    run(scenario, timeout_s=2 * COMMIT_S)


def test_appends_that_commit_in_time_are_waited_for_one_by_one() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        first = bench.commit(1)
        await asyncio.sleep(COMMIT_S * 0.9)
        bench.log.commit()
        await first
        second = bench.commit(2)
        await asyncio.sleep(COMMIT_S * 0.9)
        assert not bench.shard.is_dropped
        bench.log.commit()
        await second

    run(scenario, timeout_s=2 * COMMIT_S)


def test_an_append_is_timed_from_its_own_decision_also_behind_others() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        first = bench.commit(1)
        await asyncio.sleep(COMMIT_S / 2)
        bench.log.commit()
        await first
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        second = bench.commit(2)
        with pytest.raises(NotCoordinator):
            await second
        assert loop.time() - begun_s == pytest.approx(COMMIT_S, abs=0.1)

    run(scenario, timeout_s=2 * COMMIT_S)


class HeldBack(Confirmations):
    """Confirms when the test says so."""

    def __init__(self) -> None:
        self.rounds: list[tuple[Held, Callable[[Held], None], Callable[[Held], None]]] = []

    @property
    def is_needed(self) -> bool:
        return True

    def hold(
        self,
        responses: Iterable[Response[Any]],
        confirmed: Callable[[Held], None],
        refused: Callable[[Held], None],
    ) -> None:
        self.rounds.append((list(responses), confirmed, refused))

    def end(self, *, is_confirmed: bool) -> None:
        held, confirmed, refused = self.rounds.pop(0)
        (confirmed if is_confirmed else refused)(held)


def test_what_writes_nothing_is_confirmed_and_what_is_written_needs_no_more() -> None:
    async def scenario() -> None:
        held = HeldBack()
        bench = await Bench(held).loaded()
        written = bench.commit(5)
        await bench.log.wait_append()
        read = bench.fetch()
        await settle()
        bench.log.commit()
        await settle()
        assert written.done()
        assert not read.done(), "it came behind the append: the commit shows nothing about it"
        held.end(is_confirmed=True)
        assert [found.offset for found in await read if found is not None] == [5]
        refused = bench.fetch()
        await settle()
        held.end(is_confirmed=False)
        with pytest.raises(NotCoordinator):
            await refused
        assert not bench.dropped, "the next one may be confirmed"

    run(scenario)


def test_a_read_in_the_turn_of_a_write_shares_its_commit_and_a_dropped_shard_refuses_both() -> None:
    async def scenario() -> None:
        held = HeldBack()
        bench = await Bench(held).loaded()
        written, read = bench.commit(5), bench.fetch()
        await bench.log.wait_append()
        bench.log.commit()
        await settle()
        assert written.done()
        assert read.done()
        assert held.rounds == []
        last = bench.fetch()
        await settle()
        bench.shard.drop()
        held.end(is_confirmed=True)
        with pytest.raises(NotCoordinator):
            await last

    run(scenario)
