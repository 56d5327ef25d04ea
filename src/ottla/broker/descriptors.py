"""How the descriptors that the system lets a process have are shared out.

Files of segments and connections each get a share that they keep to: who took the last one would
stop everybody else. The rest is for the store, threads at work, the metrics page and imports.
"""

import sys
from dataclasses import dataclass
from typing import Final

from ottla.errors import UsageRefused

LIMIT_MIN: Final = 128  # below, there is not enough for anybody
_KEPT: Final = 64
_FILES_MAX: Final = 32_768


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """How many descriptors segments and connections may use."""

    limit: int  # of the process
    files: int
    connections: int


def share_out(limit: int) -> DescriptorShares:
    """The shares under a limit of the process."""
    if limit < LIMIT_MIN:
        raise UsageRefused(
            f"the system lets this process open {limit} files and connections, and a broker needs"
            f" {LIMIT_MIN}: raise the limit (ulimit -n, or LimitNOFILE of its service)"
        )
    kept = min(_KEPT, limit // 4)
    files = min((limit - kept) * 2 // 5, _FILES_MAX)
    return DescriptorShares(limit, files, limit - kept - files)


def descriptor_limit() -> int:
    """How many descriptors this process may have open."""
    import resource  # noqa: PLC0415  # POSIX only, and only a server needs it

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def raise_descriptor_limit() -> None:
    """Use all descriptors that the system allows us."""
    import resource  # noqa: PLC0415  # POSIX only, and only a server needs it

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
