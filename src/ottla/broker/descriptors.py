"""File descriptors of the process, split between segment files and connections.

Each gets a share that it must not exceed: using the last descriptor would stop everything else. The
rest is for the store, threads, the metrics page and imports.
"""

import sys
from dataclasses import dataclass
from typing import Final

from ottla.errors import UsageRefused

LIMIT_MIN: Final = 128  # below, a broker cannot work
_KEPT: Final = 64
_FILES_MAX: Final = 32_768


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """The numbers of descriptors that segment files and connections may use."""

    limit: int  # of the process
    files: int
    connections: int


def share_out(limit: int) -> DescriptorShares:
    """The shares of a process with this limit."""
    if limit < LIMIT_MIN:
        raise UsageRefused(
            f"the system lets this process open {limit} files and connections, and a broker needs"
            f" {LIMIT_MIN}: raise the limit (ulimit -n, or LimitNOFILE of its service)"
        )
    kept = min(_KEPT, limit // 4)
    files = min((limit - kept) * 2 // 5, _FILES_MAX)
    connections = limit - kept - files
    assert min(files, connections) > 0, "both shares have descriptors"
    return DescriptorShares(limit, files, connections)


def descriptor_limit() -> int:
    """The number of descriptors that this process may have open."""
    import resource  # noqa: PLC0415  # POSIX only, and only a server needs it

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def raise_descriptor_limit() -> None:
    """Raise the limit to all descriptors that the system allows."""
    import resource  # noqa: PLC0415  # POSIX only, and only a server needs it

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
