"""What a broker gets from the world: time, chance, disk and the coordination store.

The network is the event loop's. Production takes the machine's own, simulation hands in others.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ottla.clock import Clock, SystemClock
from ottla.cluster.store import CoordinationStore
from ottla.cluster.store_sqlite import SqliteStore
from ottla.storage.files import Files, OsFiles

STORE_FILE = "cluster.sqlite"
_POLL_S = 0.25  # for what other processes change; each look costs an idle broker CPU


async def open_sqlite(data: Path, clock: Clock) -> CoordinationStore:
    """The store of the brokers of one machine: a file beside the first one's data."""
    return await SqliteStore.open(data / STORE_FILE, clock, poll_interval_s=_POLL_S)


@dataclass(frozen=True, slots=True)
class Environment:
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.SystemRandom)
    files: Files = field(default_factory=OsFiles)
    open_store: Callable[[Path, Clock], Awaitable[CoordinationStore]] = open_sqlite
