"""An answer leaves only when everything it could have seen is committed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count

import pytest

from fakes import group_members as said
from fakes.virtual_loop import VirtualLoop
from ottla.coordinator.classic_group import GroupLimits, Joined
from ottla.coordinator.decision import OWNER, Outcome
from ottla.coordinator.groups import Committer, Groups
from ottla.coordinator.log_entries import Entry, TransactionEnded
from ottla.coordinator.offsets import Commit
from ottla.coordinator.records import (
    GroupDropped,
    OffsetCommitted,
    OffsetDropped,
    Record,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.shard import Shard
from ottla.errors import CoordinatorLoadInProgress, ErrorCode, NotCoordinator, StorageFailed
from ottla.model import NO_EPOCH, Offset, TimestampMs, TopicPartition

TP = TopicPartition("t", 0)


class FakeLog:
    """Keeps what is appended; commits when the test says so."""

    def __init__(self) -> None:
        self.appends: list[list[Record]] = []
        self.commits: list[asyncio.Future[None]] = []
        self.is_broken = False
        self._appended = asyncio.Event()

    async def wait_append(self) -> None:
        await self._appended.wait()

    def append(self, records: Sequence[Record]) -> "asyncio.Future[None]":
        if self.is_broken:
            raise StorageFailed("the disk is full")
        self.appends.append(list(records))
        self._appended.set()
        self.commits.append(asyncio.get_running_loop().create_future())
        return self.commits[-1]

    def commit(self) -> None:
        """The oldest append that is not committed is now."""
        next(commit for commit in self.commits if not commit.done()).set_result(None)

    def lose(self) -> None:
        next(commit for commit in self.commits if not commit.done()).set_exception(
            StorageFailed("the disk failed")
        )


class Bench:
    """A loaded shard, its log, a clock that stands still, and what it was dropped with."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.now_ms = 1000
        self.dropped: list[Shard[Groups]] = []
        self.told: list[object] = []
        ids = count(1)
        limits = GroupLimits(initial_delay_ms=0, session_timeout_min_ms=0)
        self.shard = Shard(
            Groups(lambda: limits, lambda: str(next(ids))),
            self.log.append,
            decode,
            lambda: self.now_ms,
            asyncio.get_running_loop(),
            self.dropped.append,
            self.told.append,
        )

    async def loaded(self, *records: Record) -> "Bench":
        await self.shard.load(chunks([Entry(*to_bytes(record)) for record in records]))
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

    def join(self, **more: object) -> "asyncio.Task[Joined]":
        join = said.join(version=3, **more)  # type: ignore[arg-type]
        return asyncio.ensure_future(
            self.shard.run(lambda g, ticket, now_ms: g.join(ticket, "g", join, now_ms))
        )


async def chunks(*parts: Sequence[Entry]) -> AsyncIterator[Sequence[Entry]]:
    for part in parts:
        yield part


def decode(entry: Entry | TransactionEnded) -> Record | None:
    assert isinstance(entry, Entry)
    return None if entry.key is None else from_bytes(entry.key, entry.value)


async def settle() -> None:
    """Let everything happen that can happen without the log."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
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


def test_a_load_forgets_what_was_dropped_and_leaves_out_what_it_cannot_read() -> None:
    async def scenario() -> None:
        bench = Bench()
        committed = OffsetCommitted(
            group_id="g", tp=TP, offset=Offset(7), committed_ms=TimestampMs(1)
        )
        await bench.shard.load(
            chunks(
                [
                    Entry(*to_bytes(committed)),
                    Entry(b"x", b"y"),
                    Entry(None, b"z"),
                    Entry(b"\x00\x63", b"newer"),
                ],
                [
                    Entry(*to_bytes(OffsetDropped("g", TP))),
                    Entry(*to_bytes(GroupDropped("g"))),
                    Entry(b"\x00\x01", None),
                ],
            )
        )
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


def test_after_the_loop_was_held_up_members_are_heard_before_they_are_missed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        joined = await bench.join(session_ms=20)
        bench.now_ms += 1_000_000  # what was sent meanwhile is read behind the timer
        await asyncio.sleep(0.1)  # virtual: the timer was late, and the grace is not over
        beaten = await bench.shard.run(
            lambda g, ticket, now_ms: g.heartbeat(
                ticket, "g", joined.member_id, None, joined.generation, now_ms
            )
        )
        assert beaten is not ErrorCode.UNKNOWN_MEMBER_ID
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
        answer = await bench.shard.run(lambda g, ticket, now_ms: Outcome((), ((ticket, now_ms),)))
        assert answer == bench.now_ms

    run(scenario)


def test_the_owner_is_told_when_what_it_is_told_of_is_committed() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        bench.commit(1)
        await settle()
        asked = bench.shard.run(
            lambda g, ticket, now_ms: Outcome((), ((ticket, None), (OWNER, "go on")))
        )
        answered = asyncio.ensure_future(asked)
        await settle()
        assert bench.told == []
        bench.log.commit()
        await answered
        assert bench.told == ["go on"]

    run(scenario)


def test_what_others_write_stands_behind_what_was_decided_and_holds_answers_back() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await asyncio.sleep(0)  # decided, and not written yet
        dropped = OffsetDropped("g", TP)
        bench.shard.note_written(dropped, lambda: bench.log.append([dropped]))
        assert [type(records[0]) for records in bench.log.appends] == [
            OffsetCommitted,
            OffsetDropped,
        ]
        fetched = bench.fetch()
        bench.log.commit()
        assert await committed == [ErrorCode.NONE]
        await settle()
        assert not fetched.done(), "it tells of a record that a crash could undo"
        bench.log.commit()
        assert await fetched == [None]

    run(scenario)


def test_what_others_could_not_write_has_not_happened() -> None:
    async def scenario() -> None:
        bench = await Bench().loaded()
        committed = bench.commit(1)
        await settle()
        bench.log.commit()
        await committed
        bench.log.is_broken = True
        dropped = OffsetDropped("g", TP)
        with pytest.raises(StorageFailed):
            bench.shard.note_written(dropped, lambda: bench.log.append([dropped]))
        (found,) = await bench.fetch()
        assert found is not None
        assert not bench.shard.is_dropped

    run(scenario)
