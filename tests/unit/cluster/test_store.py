"""What every coordination store promises, asked of each of them in the same words."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from fakes.memory_store import MemoryStore
from ottla.cluster.store import (
    NEVER,
    ChangeBatch,
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
    Snapshot,
    StoreUnavailable,
)
from ottla.cluster.store_sqlite import SqliteStore
from ottla.model import TimestampMs

REVISIONS_KEPT = 5
WAIT_S = 20.0


class HandClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(self.now_s * 1000))

    def monotonic_s(self) -> float:
        return self.now_s


class Bench:
    """A store, and the means to let time pass for it."""

    def __init__(self, store: CoordinationStore, clock: HandClock) -> None:
        self.store = store
        self.clock = clock

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.now_s += duration_ms / 1000
        if isinstance(self.store, MemoryStore):
            self.store.expire_leases()


Run = Callable[[Callable[[Bench], Awaitable[None]]], None]
OpenBench = Callable[[], AbstractAsyncContextManager[Bench]]


@pytest.fixture(params=["memory", "sqlite"])
def open_bench(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBench:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Bench]:
        clock = HandClock()
        store: CoordinationStore
        if request.param == "memory":
            store = MemoryStore(clock, revisions_kept=REVISIONS_KEPT)
        else:
            store = await SqliteStore.open(
                tmp_path / "store.db", clock, poll_interval_s=0.002, revisions_kept=REVISIONS_KEPT
            )
        try:
            yield Bench(store, clock)
        finally:
            await store.close()

    return opened


@pytest.fixture
def run(open_bench: OpenBench) -> Run:
    """Run a scenario on a fresh store."""

    async def scenario_on_bench(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        async with asyncio.timeout(WAIT_S), open_bench() as bench:
            await scenario(bench)

    return lambda scenario: asyncio.run(scenario_on_bench(scenario))


async def take(
    store: CoordinationStore, count: int, after: Revision, prefix: str = ""
) -> list[ChangeBatch]:
    batches: list[ChangeBatch] = []
    async with contextlib.aclosing(store.watch(prefix, after)) as watch:
        while len(batches) < count:
            batches.append(await anext(watch))
    return batches


def test_a_new_store_is_empty_at_revision_zero(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.store.range("") == Snapshot(NEVER, ())
        assert await bench.store.get("a") == Snapshot(NEVER, ())

    run(scenario)


def test_a_commit_is_one_revision_of_all_it_writes(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.store.commit([Put("b", b"2"), Put("a", b"1")]) == 1
        assert await bench.store.commit([Put("b", b"3")]) == 2
        both = (Entry("a", b"1", Revision(1)), Entry("b", b"3", Revision(2)))
        assert await bench.store.range("") == Snapshot(Revision(2), both)
        assert await bench.store.get("a") == Snapshot(Revision(2), both[:1])

    run(scenario)


def test_a_range_has_the_keys_with_its_prefix_and_no_others(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        keys = ["topics", "topics/", "topics/a", "topics/zz", "topics0", "topic"]
        await bench.store.commit([Put(key, b"") for key in keys])
        found = (await bench.store.range("topics/")).entries
        assert [entry.key for entry in found] == ["topics/", "topics/a", "topics/zz"]

    run(scenario)


def test_a_compare_that_holds_lets_the_commit_through(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.store.commit([Put("a", b"1")], [Compare("a", NEVER)])
        assert await bench.store.commit([Put("a", b"2")], [Compare("a", Revision(1))]) == 2

    run(scenario)


@pytest.mark.parametrize(
    "compare",
    [
        Compare("a", NEVER),
        Compare("a", Revision(1)),
        Compare("a", Revision(3)),
        Compare("x", Revision(1)),
    ],
)
def test_a_compare_that_fails_stops_the_whole_commit(run: Run, compare: Compare) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.store.commit([Put("a", b"1")])
        await bench.store.commit([Put("a", b"2")])
        before = await bench.store.range("")
        with pytest.raises(Conflict):
            await bench.store.commit(
                [Put("b", b"new"), Delete("a")], [Compare("b", NEVER), compare]
            )
        assert await bench.store.range("") == before

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
        await bench.store.commit([Put("a", b"1")])
        assert await bench.store.commit([Delete("a")], [Compare("a", Revision(1))]) == 2
        assert (await bench.store.range("")).entries == ()
        assert await bench.store.commit([Put("a", b"2")], [Compare("a", NEVER)]) == 3

    run(scenario)


def test_deleting_what_does_not_exist_is_no_change(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.store.commit([Put("a", b"1")])
        assert await bench.store.commit([Delete("b")]) == 1
        assert await bench.store.commit([Delete("b"), Put("a", b"2")]) == 2
        batches = await take(bench.store, 2, NEVER)
        assert batches[1].changes == (KeyChange("a", b"2"),)

    run(scenario)


def test_a_watch_tells_every_revision_in_order_from_where_it_was_asked(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.store.commit([Put("a", b"1")])
        await bench.store.commit([Put("b", b"2"), Put("c", b"3")])
        await bench.store.commit([Delete("a")])
        assert await take(bench.store, 2, Revision(1)) == [
            ChangeBatch(Revision(2), (KeyChange("b", b"2"), KeyChange("c", b"3"))),
            ChangeBatch(Revision(3), (KeyChange("a", None),)),
        ]

    run(scenario)


def test_a_watch_waits_for_what_has_not_happened_yet(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        watching = asyncio.create_task(take(bench.store, 2, NEVER))
        for value in (b"1", b"2"):
            await asyncio.sleep(0)
            await bench.store.commit([Put("a", value)])
        assert [batch.changes for batch in await watching] == [
            (KeyChange("a", b"1"),),
            (KeyChange("a", b"2"),),
        ]

    run(scenario)


def test_a_watch_of_a_prefix_tells_other_revisions_as_empty(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.store.commit([Put("a/1", b"")])
        await bench.store.commit([Put("b/1", b"")])
        assert await take(bench.store, 2, NEVER, "b/") == [
            ChangeBatch(Revision(1), ()),
            ChangeBatch(Revision(2), (KeyChange("b/1", b""),)),
        ]

    run(scenario)


def test_a_watch_from_before_the_kept_history_is_refused(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        for value in range(REVISIONS_KEPT + 2):
            await bench.store.commit([Put("a", str(value).encode())])
        with pytest.raises(Compacted):
            await take(bench.store, 1, Revision(1))
        kept = await take(bench.store, REVISIONS_KEPT, Revision(2))
        assert [batch.revision for batch in kept] == [3, 4, 5, 6, 7]

    run(scenario)


def test_keys_go_with_their_lease_and_watches_are_told(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(1000)
        await bench.store.commit([Put("broker", b"", lease), Put("other", b"")])
        watching = asyncio.create_task(take(bench.store, 1, Revision(1)))
        await asyncio.sleep(0)
        bench.pass_ms(1000)
        assert await watching == [ChangeBatch(Revision(2), (KeyChange("broker", None),))]
        keys = [entry.key for entry in (await bench.store.range("")).entries]
        assert keys == ["other"]

    run(scenario)


def test_a_lease_granted_while_a_watch_waits_runs_out_for_it_too(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        watching = asyncio.create_task(take(bench.store, 2, NEVER))
        await bench.store.get("broker")
        lease = await bench.store.grant(1000)
        await bench.store.commit([Put("broker", b"", lease)])
        await bench.store.get("broker")
        bench.pass_ms(1000)
        assert (await watching)[1].changes == (KeyChange("broker", None),)

    run(scenario)


def test_a_lease_that_is_kept_alive_lives_on(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(1000)
        await bench.store.commit([Put("broker", b"", lease)])
        for _ in range(5):
            bench.pass_ms(900)
            await bench.store.keep_alive(lease)
        assert await bench.store.commit([Put("a", b"")], [Compare("broker", Revision(1))]) == 2

    run(scenario)


def test_a_lease_that_ran_out_cannot_be_kept_or_written_under(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(1000)
        bench.pass_ms(1001)
        with pytest.raises(LeaseLost):
            await bench.store.keep_alive(lease)
        with pytest.raises(LeaseLost):
            await bench.store.commit([Put("other", b""), Put("broker", b"", lease)])
        assert (await bench.store.range("")).entries == ()

    run(scenario)


def test_a_lease_nobody_granted_is_lost(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(LeaseLost):
            await bench.store.keep_alive(LeaseId(77))

    run(scenario)


def test_an_expired_key_is_gone_for_the_next_commit_even_if_nobody_watches(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(1000)
        await bench.store.commit([Put("broker", b"old", lease)])
        bench.pass_ms(1000)
        await bench.store.commit([Put("broker", b"new")], [Compare("broker", NEVER)])
        (entry,) = (await bench.store.range("")).entries
        assert entry.value == b"new"

    run(scenario)


def test_revoking_a_lease_ends_its_keys_at_once_and_twice_is_no_harm(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        lease = await bench.store.grant(1000)
        await bench.store.commit([Put("b", b"", lease), Put("a", b"", lease)])
        await bench.store.revoke(lease)
        await bench.store.revoke(lease)
        assert await bench.store.range("") == Snapshot(Revision(2), ())
        (batch,) = await take(bench.store, 1, Revision(1))
        assert batch.changes == (KeyChange("a", None), KeyChange("b", None))

    run(scenario)


def test_a_key_written_again_leaves_its_old_lease(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        old, new = await bench.store.grant(1000), await bench.store.grant(5000)
        await bench.store.commit([Put("moved", b"", old), Put("freed", b"", old)])
        await bench.store.commit([Put("moved", b"", new), Put("freed", b"")])
        await bench.store.revoke(old)
        assert [entry.key for entry in (await bench.store.range("")).entries] == ["freed", "moved"]
        await bench.store.revoke(new)
        assert [entry.key for entry in (await bench.store.range("")).entries] == ["freed"]

    run(scenario)


def test_closing_ends_watches_and_refuses_calls(run: Run) -> None:
    async def scenario(bench: Bench) -> None:
        watching = asyncio.create_task(take(bench.store, 1, NEVER))
        await asyncio.sleep(0)
        await bench.store.close()
        with pytest.raises(StoreUnavailable):
            await watching
        with pytest.raises(StoreUnavailable):
            await bench.store.range("")
        await bench.store.close()

    run(scenario)
