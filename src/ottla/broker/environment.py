"""Everything a broker gets from outside: clock, random numbers, files, the coordination store.

The network is the event loop's. A simulation passes in others than the machine's own.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ottla.broker.meta_properties import IDENTITY_FILE
from ottla.clock import Clock, SystemClock
from ottla.cluster.store import CoordinationStore
from ottla.cluster.store_sqlite import STORE_FILES, SqliteStore
from ottla.errors import UsageRefused
from ottla.storage.files import Files, OsFiles

_POLL_S = 0.25  # for changes of other processes; each poll costs an idle broker CPU


async def open_sqlite(data: Path, clock: Clock) -> CoordinationStore:
    """The store of the brokers of one machine: a file in the first one's data directory."""
    path = data / STORE_FILES[0]
    is_new = not (data / IDENTITY_FILE).exists()
    if not is_new and not (path.exists() and path.stat().st_size):
        raise UsageRefused(  # before SQLite makes a new one, and removes the journal beside it
            f"{path} is missing or empty: bring back a copy of it with its -wal, or see what"
            f" `ottla log accept-store {data}` can do without it"
        )
    return await SqliteStore.open(path, clock, poll_interval_s=_POLL_S)


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside of one broker; the defaults are those of production."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    files: Files = field(default_factory=OsFiles)
    open_store: Callable[[Path, Clock], Awaitable[CoordinationStore]] = open_sqlite
