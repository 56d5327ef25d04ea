"""The coordination store of one machine: a SQLite file shared by its broker processes.

All SQL runs on one thread of its own, because a commit waits for the disk and for other
processes. Commits of other processes are noticed by polling, those of this one at once.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from ottla.clock import Clock
from ottla.cluster.sqlite_database import Database
from ottla.cluster.sqlite_file import open_file
from ottla.cluster.store import (
    NEVER,
    ChangeBatch,
    CommitLimits,
    Compare,
    LeaseId,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
    check_size,
)

STORE_FILES: Final = ("cluster.sqlite", "cluster.sqlite-wal", "cluster.sqlite-shm")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SqliteStore:
    """A `CoordinationStore` in one file, with the guarantees documented there."""

    # A commit is a wait for the disk, and few large ones are faster than many small ones.
    limits = CommitLimits(writes=4096, compares=8192, size_bytes=16 << 20)
    can_fall_silent = False

    def __init__(
        self, database: Database, thread: ThreadPoolExecutor, poll_interval_s: float
    ) -> None:
        """Use `open`."""
        self._database = database
        self._thread = thread
        self._poll_interval_s = poll_interval_s
        self._newest = NEVER  # the newest revision this process knows of
        self._advanced = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        poll_interval_s: float = 0.05,
        busy_timeout_ms: int = 5000,
        revisions_kept: int = 256,
        is_synced: bool = True,
    ) -> "SqliteStore":
        """Open the file, or create it. Raises UsageRefused when it cannot serve as a store.

        Without `is_synced` no commit waits for the disk, and a power cut may damage the file.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ottla-store")

        def connect() -> Database:
            connection = open_file(path, busy_timeout_ms, is_synced=is_synced)
            return Database(connection, clock, revisions_kept, is_synced=is_synced)

        try:
            database = await asyncio.get_running_loop().run_in_executor(thread, connect)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(database, thread, poll_interval_s)

    async def get(self, key: str) -> Snapshot:
        return await self._run(self._database.get, key)

    async def range(self, prefix: str) -> Snapshot:
        return await self._run(self._database.range, prefix)

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        check_size(writes, compares, self.limits)
        revision = await self._run(self._database.commit, writes, compares)
        self._notice(revision)
        return revision

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        self._ensure_polling()
        while True:
            advanced = self._advanced
            batches = await self._run(self._database.history, prefix, after)
            for batch in batches:
                after = batch.revision
                yield batch
            if not batches:
                await advanced.wait()
                self._raise_poller_failure()

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._run(self._database.grant, ttl_ms)

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._run(self._database.keep_alive, lease)

    async def revoke(self, lease: LeaseId) -> None:
        self._notice(await self._run(self._database.revoke, lease))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        self._wake_watches()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown(wait=False)

    async def _run(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        if self._is_closed:
            raise StoreUnavailable("the coordination store is closed")
        call = partial(work, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except sqlite3.Error as problem:
            raise StoreUnavailable(f"the coordination store failed: {problem}") from problem

    def _ensure_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="ottla-store-poll")
            self._poller.add_done_callback(lambda _: self._wake_watches())

    async def _poll(self) -> None:
        while True:
            self._notice(await self._run(self._database.poll))
            await asyncio.sleep(self._poll_interval_s)

    def _raise_poller_failure(self) -> None:
        """Raise the poller's failure: watches end with the poller."""
        if self._is_closed:
            raise StoreUnavailable("the coordination store was closed")
        if self._poller is not None and self._poller.done() and not self._poller.cancelled():
            self._poller.result()

    def _notice(self, revision: Revision) -> None:
        if revision > self._newest:
            self._newest = revision
            self._wake_watches()

    def _wake_watches(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()
