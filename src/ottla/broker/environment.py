"""Everything a broker gets from outside: clock, random numbers, files, threads, the store.

The network is the event loop's. A simulation passes in others than the machine's own.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from ottla.broker.meta_properties import IDENTITY_FILE
from ottla.clock import Clock, SystemClock
from ottla.cluster.store import CoordinationStore
from ottla.cluster.store_sqlite import STORE_FILES, SqliteStore
from ottla.errors import UsageRefused
from ottla.storage.disk_worker import ThreadWorker, Worker
from ottla.storage.files import Files, OsFiles, VolatileFiles
from ottla.storage.flusher import Flusher, ThreadFlusher

OpenStore = Callable[[Path, Clock], Awaitable[CoordinationStore]]

_WORKER_PAUSE_S: Final = 0.0002
_POLL_S: Final = 0.25  # for changes of other processes; each poll costs an idle broker CPU


async def open_sqlite(data: Path, clock: Clock, *, is_synced: bool = True) -> CoordinationStore:
    """The store of the brokers of one machine: a file in the first one's data directory."""
    path = data / STORE_FILES[0]
    is_new = not (data / IDENTITY_FILE).exists()
    if not is_new and not (path.exists() and path.stat().st_size):
        raise UsageRefused(  # before SQLite makes a new one, and removes the journal beside it
            f"{path} is missing or empty: bring back a copy of it with its -wal, or see what"
            f" `ottla log accept-store {data}` can do without it"
        )
    return await SqliteStore.open(path, clock, poll_interval_s=_POLL_S, is_synced=is_synced)


def start_flusher(
    files: Files, on_failed: Callable[[OSError], None], clock: Clock
) -> ThreadFlusher:
    """A thread that syncs for the running loop."""
    loop = asyncio.get_running_loop()
    return ThreadFlusher(
        files,
        on_failed,
        post=loop.call_soon_threadsafe,
        soon=loop.call_soon,
        monotonic_s=clock.monotonic_s,
    )


def start_worker(name: str) -> ThreadWorker:
    """A thread that works for the running loop, and lets other threads run in between."""
    loop = asyncio.get_running_loop()
    pause = partial(time.sleep, _WORKER_PAUSE_S)
    return ThreadWorker(name, post=loop.call_soon_threadsafe, pause=pause)


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside of one broker; the defaults are those of production."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    files: Files = field(default_factory=OsFiles)
    open_store: OpenStore = open_sqlite
    start_flusher: Callable[[Files, Callable[[OSError], None], Clock], Flusher] = start_flusher
    start_worker: Callable[[str], Worker] = start_worker
    has_own_store: bool = True  # in its data directory, and so only as long as that is there
    boot_id: str = ""  # of this life of the machine, if brokers share a store
    machine_id: str = ""  # that no other machine has, likewise

    def without_syncs(self) -> "Environment":
        """The same for a directory that is removed in the end: nothing waits for the disk."""
        return replace(
            self, files=VolatileFiles(), open_store=partial(open_sqlite, is_synced=False)
        )
