"""What every coordination store promises, asked of each of them in the same words.

Revisions begin anywhere and skip numbers: tests take them from the store.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from fakes.etcd_process import EtcdProcess
from fakes.memory_store import MemoryStore
from ottla.cluster.store import (
    NEVER,
    SMALLEST_LIMITS,
    ChangeBatch,
    CommitLimits,
    Compacted,
    Compare,
    Conflict,
    CoordinationStore,
    Delete,
    Entry,
    KeyChange,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    StoreUnavailable,
    Write,
)
from ottla.cluster.store_etcd import EtcdStore
from ottla.cluster.store_sqlite import SqliteStore
from ottla.model import TimestampMs

REVISIONS_KEPT = 5
WAIT_S = 120.0
LEASE_MS = 2000  # the shortest that every kind grants
RENEWED_LEASE_MS = 4000


class HandClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self.now_s * 1000))

    def monotonic_s(self) -> float:
        return self.now_s


class Bench(Protocol):
    """A store, and what a test does to it from outside."""

    @property
    def store(self) -> CoordinationStore: ...

    async def expire(self, lease: LeaseId) -> None:
        """Let time pass until the lease, of `LEASE_MS`, is over."""

    async def pass_some_time(self) -> None:
        """Let time pass, but less than a lease."""

    async def compact(self) -> None:
        """Have the store forget its history so far."""


@dataclass
class HandBench:
    """A store whose time the test makes."""

    store: MemoryStore | SqliteStore
    clock: HandClock

    async def expire(self, lease: LeaseId) -> None:
        self._pass_ms(LEASE_MS)

    async def pass_some_time(self) -> None:
        self._pass_ms(RENEWED_LEASE_MS - 100)
        await asyncio.sleep(0)

    async def compact(self) -> None:
        for number in range(REVISIONS_KEPT + 1):
            await self.store.commit([Put("filler", str(number).encode())])
        await self.store.commit([Delete("filler")])

    def _pass_ms(self, duration_ms: int) -> None:
        self.clock.now_s += duration_ms / 1000
        if isinstance(self.store, MemoryStore):
            self.store.expire_leases()


@dataclass
class EtcdBench:
    """An etcd server: time is real, and leases are short."""

    store: EtcdStore
    etcd: EtcdProcess

    async def expire(self, lease: LeaseId) -> None:
        while await self._left_s(lease) >= 0:
            await self.pass_some_time()

    async def pass_some_time(self) -> None:
        await asyncio.sleep(0.1)

    async def compact(self) -> None:
        await self.etcd.compact()

    async def _left_s(self, lease: LeaseId) -> int:
        found = await self.etcd.post("/v3/lease/timetolive", {"ID": str(lease)})
        return int(found.get("TTL", 0))


Scenario = Callable[[Bench], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a scenario on a fresh store."""
    opened: Callable[[], AbstractAsyncContextManager[Bench]]
    if request.param == "etcd":
        etcd: EtcdProcess = request.getfixturevalue("etcd")
        opened = partial(etcd_bench, etcd, tmp_path.name)
    else:
        opened = partial(hand_bench, request.param, tmp_path)

    async def on_bench(scenario: Scenario) -> None:
        async with asyncio.timeout(WAIT_S), opened() as bench:
            await scenario(bench)

    return lambda scenario: asyncio.run(on_bench(scenario))


@asynccontextmanager
async def hand_bench(kind: str, folder: Path) -> AsyncIterator[Bench]:
    clock = HandClock()
    store: MemoryStore | SqliteStore
    if kind == "memory":
        store = MemoryStore(clock, revisions_kept=REVISIONS_KEPT)
    else:
        store = await SqliteStore.open(
            folder / "store.db", clock, poll_interval_s=0.002, revisions_kept=REVISIONS_KEPT
        )
    try:
        yield HandBench(store, clock)
    finally:
        await store.close()


@asynccontextmanager
async def etcd_bench(etcd: EtcdProcess, prefix: str) -> AsyncIterator[Bench]:
    store = await EtcdStore.open(etcd.address(prefix), timeout_s=WAIT_S)
    try:
        yield EtcdBench(store, etcd)
    finally:
        await store.close()


# Where time is real, these take seconds.
waits_for_leases = pytest.mark.parametrize(
    "run", ["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.slow)], indirect=True
)


async def now(bench: Bench) -> Revision:
    return (await bench.store.range("")).revision


async def keys(bench: Bench, prefix: str = "") -> list[str]:
    return [entry.key for entry in (await bench.store.range(prefix)).entries]


async def take(
    store: CoordinationStore, count: int, after: Revision, prefix: str = ""
) -> list[ChangeBatch]:
    """So many revisions that changed something below the prefix."""
    batches: list[ChangeBatch] = []
    async with contextlib.aclosing(store.watch(prefix, after)) as watch:
        while len(batches) < count:
            batch = await anext(watch)
            batches += [batch] if batch.changes else []
    return batches


def test_a_new_store_is_empty(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.store.range("")).entries == ()
        assert (await bench.store.get("a")).entries == ()

    run(scenario)


def test_a_commit_is_one_revision_of_all_it_writes(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        before = await now(bench)
        first = await bench.store.commit([Put("b", b"2"), Put("a", b"1")])
        second = await bench.store.commit([Put("b", b"3")])
        assert before < first < second
        found = await bench.store.range("")
        assert found.entries == (Entry("a", b"1", first), Entry("b", b"3", second))
        assert found.revision >= second
        assert (await bench.store.get("a")).entries == found.entries[:1]

    run(scenario)


def test_a_value_may_be_empty_or_any_bytes(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        revision = await bench.store.commit([Put("empty", b""), Put("all", bytes(range(256)))])
        assert (await bench.store.range("")).entries == (
            Entry("all", bytes(range(256)), revision),
            Entry("empty", b"", revision),
        )

    run(scenario)


def test_a_range_has_the_keys_with_its_prefix_and_no_others(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        written = [
            "topics",
            "topics/",
            "topics/a",
            "topics/zz",
            "topics/\u00e9",
            "topics0",
            "topic",
        ]
        await bench.store.commit([Put(key, b"") for key in written])
        found = ["topics/", "topics/a", "topics/zz", "topics/\u00e9"]
        assert await keys(bench, "topics/") == found
        assert await keys(bench, "topics/\u00e9") == ["topics/\u00e9"]
        assert await keys(bench, "topics0/") == []

    run(scenario)


def test_a_range_of_five_thousand_keys_is_whole_and_in_order(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        written = [f"partitions/{number:05}" for number in range(5000)]
        for begin in range(0, len(written), SMALLEST_LIMITS.writes):
            await bench.store.commit(
                [Put(key, key.encode()) for key in written[begin : begin + SMALLEST_LIMITS.writes]]
            )
        found = (await bench.store.range("partitions/")).entries
        assert [entry.key for entry in found] == written
        assert all(entry.value == entry.key.encode() for entry in found)

    run(scenario)


def test_a_commit_may_be_as_large_as_the_limits_say(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        limits = bench.store.limits
        size_bytes = limits.size_bytes // limits.writes
        names = [f"{number:04}" for number in range(limits.writes)]
        values = {name: bytes([int(name) % 251]) * (size_bytes - len(name)) for name in names}
        writes = [Put(name, value) for name, value in values.items()]
        compares = [Compare(f"absent-{number}", NEVER) for number in range(limits.compares)]
        begin = await now(bench)
        revision = await bench.store.commit(writes, compares)
        (batch,) = await take(bench.store, 1, begin)
        assert batch.revision == revision
        assert {change.key: change.value for change in batch.changes} == values

    run(scenario)


TooMuch = Callable[[CommitLimits], tuple[list[Write], list[Compare]]]


@pytest.mark.parametrize(
    "too_much",
    [
        pytest.param(lambda _: ([Put("a", b""), Delete("a")], []), id="one key twice"),
        pytest.param(
            lambda limits: ([Put(str(n), b"") for n in range(limits.writes + 1)], []), id="writes"
        ),
        pytest.param(
            lambda limits: ([], [Compare(str(n), NEVER) for n in range(limits.compares + 1)]),
            id="compares",
        ),
        pytest.param(lambda limits: ([Put("a", bytes(limits.size_bytes))], []), id="bytes"),
    ],
)
def test_a_commit_over_a_limit_is_a_mistake(run: Run, too_much: TooMuch) -> None:
    async def scenario(bench: Bench) -> None:
        writes, compares = too_much(bench.store.limits)
        with pytest.raises(AssertionError):
            await bench.store.commit(writes, compares)
        assert await keys(bench) == []

    run(scenario)


def test_every_store_takes_as_much_as_the_smallest(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        for limit, smallest in zip(bench.store.limits, SMALLEST_LIMITS, strict=True):
            assert limit >= smallest

    run(scenario)


def test_a_value_of_two_hundred_kilobytes_is_kept_and_watched(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        value = bytes(range(200)) * 1000
        begin = await now(bench)
        await bench.store.commit([Put("catalog", value)])
        (entry,) = (await bench.store.get("catalog")).entries
        assert entry.value == value
        (batch,) = await take(bench.store, 1, begin)
        assert batch.changes == (KeyChange("catalog", value),)

    run(scenario)


def test_a_compare_that_holds_lets_the_commit_through(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")], [Compare("a", NEVER)])
        second = await bench.store.commit([Put("a", b"2")], [Compare("a", first)])
        assert (await bench.store.get("a")).entries == (Entry("a", b"2", second),)

    run(scenario)


@pytest.mark.parametrize("which", ["never", "older", "newer", "absent"])
def test_a_compare_that_fails_stops_the_whole_commit(run: Run, which: str) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        second = await bench.store.commit([Put("a", b"2")])
        failing = {
            "never": Compare("a", NEVER),
            "older": Compare("a", first),
            "newer": Compare("a", Revision(second + 1)),
            "absent": Compare("x", first),
        }
        before = (await bench.store.range("")).entries
        writes: list[Write] = [Put("b", b"new"), Delete("a")]
        with pytest.raises(Conflict):
            await bench.store.commit(writes, [Compare("b", NEVER), failing[which]])
        assert (await bench.store.range("")).entries == before

    run(scenario)


def test_a_commit_without_writes_only_compares(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        assert await bench.store.commit([], [Compare("a", first)]) >= first
        with pytest.raises(Conflict):
            await bench.store.commit([], [Compare("a", NEVER)])
        assert (await bench.store.range("")).entries == (Entry("a", b"1", first),)

    run(scenario)


def test_of_many_who_compare_the_same_revision_one_wins(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        results = await asyncio.gather(
            *(
                bench.store.commit([Put("a", str(who).encode())], [Compare("a", NEVER)])
                for who in range(10)
            ),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 9 + ["int"]

    run(scenario)


def test_a_deleted_key_counts_as_never_written(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        deleted = await bench.store.commit([Delete("a")], [Compare("a", first)])
        assert await keys(bench) == []
        again = await bench.store.commit([Put("a", b"2")], [Compare("a", NEVER)])
        assert first < deleted < again
        assert (await bench.store.get("a")).entries == (Entry("a", b"2", again),)
        assert await take(bench.store, 2, first) == [
            ChangeBatch(deleted, (KeyChange("a", None),)),
            ChangeBatch(again, (KeyChange("a", b"2"),)),
        ]

    run(scenario)


def test_deleting_what_does_not_exist_is_no_change(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        assert await bench.store.commit([Delete("b")]) >= first
        second = await bench.store.commit([Delete("b"), Put("a", b"2")])
        assert await take(bench.store, 1, first) == [ChangeBatch(second, (KeyChange("a", b"2"),))]

    run(scenario)


def test_a_watch_tells_every_revision_in_order_from_where_it_was_asked(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        second = await bench.store.commit([Put("b", b"2"), Put("c", b"3")])
        third = await bench.store.commit([Delete("a")])
        assert await take(bench.store, 2, first) == [
            ChangeBatch(second, (KeyChange("b", b"2"), KeyChange("c", b"3"))),
            ChangeBatch(third, (KeyChange("a", None),)),
        ]

    run(scenario)


def test_a_watch_waits_for_what_has_not_happened_yet(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        begin = await now(bench)
        async with contextlib.aclosing(bench.store.watch("", begin)) as watch:
            for value in (b"1", b"2", b"3"):
                waiting = asyncio.ensure_future(anext(watch))
                await bench.store.get("a")
                assert not waiting.done()
                revision = await bench.store.commit([Put("a", value)])
                assert await waiting == ChangeBatch(revision, (KeyChange("a", value),))

    run(scenario)


def test_two_watches_at_once_see_the_same_from_where_each_began(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        begin = await now(bench)
        early = asyncio.create_task(take(bench.store, 3, begin))
        first = await bench.store.commit([Put("a", b"1")])
        late = asyncio.create_task(take(bench.store, 2, first))
        await bench.store.commit([Put("a", b"2")])
        await bench.store.commit([Delete("a")])
        assert (await early)[1:] == await late

    run(scenario)


def test_a_watch_of_a_prefix_tells_no_changes_elsewhere(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        begin = await now(bench)
        await bench.store.commit([Put("a/1", b""), Put("b", b""), Put("b0", b"")])
        below = await bench.store.commit([Put("b/1", b""), Put("a/2", b"")])
        changed = ChangeBatch(below, (KeyChange("b/1", b""),))
        assert await take(bench.store, 1, begin, "b/") == [changed]

    run(scenario)


def test_all_changes_of_a_revision_come_in_one_batch(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        begin = await now(bench)
        names = [f"{number:02}" for number in range(SMALLEST_LIMITS.writes)]
        waiting = asyncio.create_task(take(bench.store, 3, begin))
        for value in (b"1", b"2", b"3"):
            await bench.store.commit([Put(name, value) for name in names])
        for of in (await waiting, await take(bench.store, 3, begin)):
            assert [len(batch.changes) for batch in of] == [SMALLEST_LIMITS.writes] * 3
            assert [{change.value for change in batch.changes} for batch in of] == [
                {b"1"},
                {b"2"},
                {b"3"},
            ]

    run(scenario)


def test_a_watch_from_before_the_kept_history_is_refused(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        await bench.store.commit([Put("a", b"2")])
        await bench.compact()
        with pytest.raises(Compacted):
            await take(bench.store, 1, first)
        kept = await now(bench)
        revision = await bench.store.commit([Put("a", b"3")])
        assert await take(bench.store, 1, kept) == [ChangeBatch(revision, (KeyChange("a", b"3"),))]

    run(scenario)


def test_a_watch_never_leaves_out_a_deletion_that_was_compacted(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.store.commit([Put("a", b"1")])
        await bench.store.commit([Delete("a")])
        await bench.compact()
        await bench.store.commit([Put("b", b"")])
        with pytest.raises(Compacted):
            await take(bench.store, 1, first)

    run(scenario)


@waits_for_leases
def test_keys_go_with_their_lease_and_watches_are_told(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(LEASE_MS)
        written = await bench.store.commit(
            [Put("broker", b"", lease), Put("ready", b"", lease), Put("other", b"")]
        )
        watching = asyncio.create_task(take(bench.store, 1, written))
        await bench.expire(lease)
        (batch,) = await watching
        gone = {KeyChange("broker", None), KeyChange("ready", None)}
        assert set(batch.changes) == gone
        assert await keys(bench) == ["other"]

    run(scenario)


@waits_for_leases
def test_a_lease_granted_while_a_watch_waits_runs_out_for_it_too(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        watching = asyncio.create_task(take(bench.store, 2, await now(bench)))
        await bench.store.get("broker")
        lease = await bench.store.grant(LEASE_MS)
        await bench.store.commit([Put("broker", b"", lease)])
        await bench.store.get("broker")
        await bench.expire(lease)
        assert (await watching)[1].changes == (KeyChange("broker", None),)

    run(scenario)


@waits_for_leases
def test_a_lease_that_is_kept_alive_lives_on(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        kept = await bench.store.grant(RENEWED_LEASE_MS)
        left = await bench.store.grant(RENEWED_LEASE_MS)
        written = await bench.store.commit([Put("kept", b"", kept), Put("left", b"", left)])
        watching = asyncio.create_task(take(bench.store, 1, written))
        while not watching.done():
            await bench.pass_some_time()
            await bench.store.keep_alive(kept)
        assert (await watching)[0].changes == (KeyChange("left", None),)
        await bench.store.commit([Put("a", b"")], [Compare("kept", written)])

    run(scenario)


@waits_for_leases
def test_a_lease_that_ran_out_cannot_be_kept_or_written_under(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(LEASE_MS)
        await bench.expire(lease)
        with pytest.raises(LeaseLost):
            await bench.store.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await bench.store.commit([Put("other", b""), Put("broker", b"", lease)])
        assert await keys(bench) == []

    run(scenario)


def test_a_lease_that_never_was_is_lost(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        unknown = LeaseId(77)
        with pytest.raises(LeaseLost):
            await bench.store.keep_alive(unknown)
        with pytest.raises(LeaseLost):
            await bench.store.commit([Put("other", b""), Put("broker", b"", unknown)])
        await bench.store.revoke(unknown)
        assert await keys(bench) == []

    run(scenario)


@waits_for_leases
def test_an_expired_key_is_gone_for_the_next_commit_even_if_nobody_watches(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(LEASE_MS)
        await bench.store.commit([Put("broker", b"old", lease)])
        await bench.expire(lease)
        await bench.store.commit([Put("broker", b"new")], [Compare("broker", NEVER)])
        (entry,) = (await bench.store.range("")).entries
        assert entry.value == b"new"

    run(scenario)


def test_revoking_a_lease_ends_its_keys_at_once_and_twice_is_no_harm(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(LEASE_MS * 100)
        written = await bench.store.commit([Put("b", b"", lease), Put("a", b"", lease)])
        await bench.store.revoke(lease)
        await bench.store.revoke(lease)
        assert await keys(bench) == []
        (batch,) = await take(bench.store, 1, written)
        assert batch.changes == (KeyChange("a", None), KeyChange("b", None))
        assert written < batch.revision <= await now(bench)
        with pytest.raises(LeaseLost):
            await bench.store.commit([Put("c", b"", lease)])

    run(scenario)


def test_a_key_written_again_leaves_its_old_lease(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        old, new = await bench.store.grant(200_000), await bench.store.grant(200_000)
        await bench.store.commit([Put("moved", b"", old), Put("freed", b"", old)])
        await bench.store.commit([Put("moved", b"", new), Put("freed", b"")])
        await bench.store.revoke(old)
        assert await keys(bench) == ["freed", "moved"]
        await bench.store.revoke(new)
        assert await keys(bench) == ["freed"]

    run(scenario)


def test_closing_ends_watches_and_refuses_calls(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        store, begin = bench.store, await now(bench)
        async with contextlib.aclosing(store.watch("", begin)) as watch:
            await store.commit([Put("a", b"")])
            await anext(watch)
            waiting = asyncio.ensure_future(anext(watch))
            await store.get("a")
            await store.close()
            with pytest.raises(StoreUnavailable):
                await waiting
        with pytest.raises(StoreUnavailable):
            await store.range("")
        with pytest.raises(StoreUnavailable):
            await store.commit([Put("a", b"")])
        with pytest.raises(StoreUnavailable):
            await take(store, 1, begin)
        await store.close()

    run(scenario)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
def test_closing_ends_a_watch_that_is_just_being_opened(run: Run, turns: int) -> None:
    async def scenario(bench: Bench) -> None:
        watching = asyncio.create_task(take(bench.store, 1, await now(bench)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.store.close()
        with pytest.raises(StoreUnavailable):
            await watching

    run(scenario)
