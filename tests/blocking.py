"""Blocking calls on an event loop of this process fail the test that makes them.

Blockbuster replaces the calls that block; one on a thread with a running loop raises BlockingError.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blockbuster import BlockBuster

import ottla

_SOURCES: Final = Path(ottla.__file__).parent.parent
_ANYWHERE: Final = ("time.", "socket.", "ssl.", "builtins.")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Functions of a module, or all of them, that may make calls whose names begin so."""

    module: str
    functions: frozenset[str]
    calls: tuple[str, ...]
    why: str


EVERY: Final[frozenset[str]] = frozenset()
ALLOWED: Final = (
    Allowed(
        "ottla/storage/files.py",
        EVERY,
        ("os.", "io."),
        "storage is synchronous: the page cache is read and written on the loop, and what waits"
        " for the disk is given to a thread",
    ),
    Allowed(
        "ottla/broker/writer.py",
        frozenset({"_send_range"}),
        ("os.sendfile",),
        "from the page cache into a socket that does not block",
    ),
    Allowed(
        "ottla/broker/environment.py",
        frozenset({"open_sqlite"}),
        ("os.stat",),
        "two files are looked at before the broker serves anything",
    ),
    Allowed(
        "ottla/storage/disk_worker.py",
        frozenset({"close", "abandon"}),
        ("threading.Lock",),
        "a broker that stops serves nothing while its thread ends",
    ),
    Allowed(
        "ottla/storage/flusher.py",
        frozenset({"close", "abandon"}),
        ("threading.Lock",),
        "a broker that stops serves nothing while its thread ends",
    ),
    Allowed(
        "ottla/broker/offline.py",
        EVERY,
        ("os.", "io."),
        "a command on the directory of a stopped broker: its loop serves nothing",
    ),
    Allowed(
        "ottla/queues/schedules.py",
        frozenset({"read"}),
        ("os.", "io.", "builtins."),
        "the file of a time zone, a few kilobytes, is read when the zone is first named",
    ),
    Allowed(
        "ottla/telemetry.py",
        frozenset({"exposition"}),
        ("os.", "io."),
        "prometheus-client is imported at the first scrape and reads /proc, which is not on a disk",
    ),
    Allowed(
        "ottla/replication/replicas.py",
        frozenset({"disk_space"}),
        ("os.statvfs",),
        "the kernel knows the space of a mounted file system without reading from the disk",
    ),
    Allowed(
        "ottla/cli/async_io.py",
        frozenset({"write", "_read_available"}),
        ("os.write", "os.read"),
        "only after select, and no more than a pipe takes at once: a terminal is shared with other"
        " programs, and so stays blocking",
    ),
)


@contextmanager
def blocking_calls_fail() -> Iterator[None]:
    """Files and locks are checked below our own code, sleeping and sockets below tests as well."""
    buster = BlockBuster(scanned_modules=[ottla])
    buster.functions |= {
        name: call for name, call in BlockBuster().functions.items() if name.startswith(_ANYWHERE)
    }
    for allowed in ALLOWED:
        functions = _functions(allowed)
        for name, call in buster.functions.items():
            if name.startswith(allowed.calls):
                call.can_block_in(allowed.module, functions)
    buster.activate()
    try:
        yield
    finally:
        buster.deactivate()


def _functions(allowed: Allowed) -> frozenset[str]:
    nodes = ast.walk(ast.parse((_SOURCES / allowed.module).read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = frozenset(node.name for node in nodes if isinstance(node, kinds))
    assert found >= allowed.functions, f"{allowed.module} lacks {allowed.functions - found}"
    return allowed.functions or found
