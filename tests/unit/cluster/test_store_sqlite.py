"""What is true of the SQLite store alone: its file, its refusals, its neighbours."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

from ottla.clock import SystemClock
from ottla.cluster.store import NEVER, ChangeBatch, Compare, KeyChange, Put, Revision
from ottla.cluster.store_sqlite import SqliteStore
from ottla.model import TimestampMs

WAIT_S = 30.0


class BootClock:
    """A monotonic clock that can begin anew, as after a restart of the machine."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(0)

    def monotonic_s(self) -> float:
        return self.now_s


def test_what_was_committed_is_there_after_opening_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await SqliteStore.open(tmp_path / "store.db", SystemClock())
        await first.commit([Put("a", b"1")])
        await first.close()
        second = await SqliteStore.open(tmp_path / "store.db", SystemClock())
        assert await second.commit([Put("a", b"2")], [Compare("a", Revision(1))]) == 2
        await second.close()

    asyncio.run(scenario())


def test_leases_do_not_survive_a_restart_of_the_machine(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = await SqliteStore.open(tmp_path / "store.db", BootClock(now_s=5000.0))
        lease = await before.grant(10_000)
        await before.commit([Put("brokers/1", b"", lease)])
        await before.close()
        after = await SqliteStore.open(tmp_path / "store.db", BootClock(now_s=1.0))
        async with contextlib.aclosing(after.watch("", Revision(1))) as watch:
            assert (await anext(watch)).changes == (KeyChange("brokers/1", None),)
        await after.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_a_waiting_watch_sees_what_another_store_on_the_same_file_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "store.db"
        here = await SqliteStore.open(path, SystemClock(), poll_interval_s=0.002)
        there = await SqliteStore.open(path, SystemClock(), poll_interval_s=0.002)
        seen: asyncio.Queue[ChangeBatch] = asyncio.Queue()

        async def watch() -> None:
            async for batch in here.watch("", NEVER):
                seen.put_nowait(batch)

        watching = asyncio.create_task(watch())
        for value in (b"1", b"2", b"3"):
            await there.commit([Put("a", value)])
            assert (await seen.get()).changes == (KeyChange("a", value),)
        watching.cancel()
        await asyncio.wait([watching])
        await here.close()
        await there.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def test_what_this_process_commits_is_seen_without_polling(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await SqliteStore.open(tmp_path / "store.db", SystemClock(), poll_interval_s=3600)
        async with contextlib.aclosing(store.watch("", NEVER)) as watch:
            for value in (b"1", b"2", b"3"):
                waiting = asyncio.create_task(anext(watch))
                await store.get("a")  # by now the watch has looked, and waits
                await store.commit([Put("a", value)])
                assert (await waiting).changes == (KeyChange("a", value),)
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


COUNT_UP = """
import asyncio, sys
from pathlib import Path
from ottla.clock import SystemClock
from ottla.cluster.store import NEVER, Compare, Conflict, Put
from ottla.cluster.sqlite_file import RESERVED_PAGES
from ottla.cluster.store_sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), SystemClock())
    done = 0
    while done < int(sys.argv[2]):
        entries = (await store.get("count")).entries
        value, seen = (int(entries[0].value), entries[0].mod_revision) if entries else (0, NEVER)
        try:
            await store.commit([Put("count", str(value + 1).encode())], [Compare("count", seen)])
            done += 1
        except Conflict:
            pass
    await store.close()

asyncio.run(main())
"""


def test_processes_that_create_and_count_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", COUNT_UP, str(path), "20"]) for _ in range(4)
    ]
    assert [process.wait(timeout=WAIT_S) for process in processes] == [0, 0, 0, 0]

    async def scenario() -> None:
        store = await SqliteStore.open(path, SystemClock())
        (entry,) = (await store.get("count")).entries
        assert (entry.value, entry.mod_revision) == (b"80", 80)
        await store.close()

    asyncio.run(scenario())


def test_what_is_remembered_of_the_past_only_shrinks_from_its_beginning(tmp_path: Path) -> None:
    """Also when one process keeps more of it than another."""

    async def scenario() -> None:
        for kept in (2, 100):
            store = await SqliteStore.open(tmp_path / "db", SystemClock(), revisions_kept=kept)
            for number in range(5):
                await store.commit([Put("a", bytes([number]))])
            await store.close()
        await (await SqliteStore.open(tmp_path / "db", SystemClock())).close()

    asyncio.run(scenario())
