"""Versions of etcd: those that cannot be used, and those that need a warning."""

import re
from typing import Final

from ottla.errors import UsageRefused

_OLDEST: Final = (3, 4, 0)
# Can lose or corrupt data after a crash (etcd's data inconsistency advisory of 2022).
_CORRUPTING: Final = ((3, 5, 0), (3, 5, 2))
# The first release of each line in which a renewal of a revoked lease is no success, and in which
# a change of etcd's leader revokes no live lease.
_LEASES_FIXED: Final = {(3, 4): (3, 4, 38), (3, 5): (3, 5, 23), (3, 6): (3, 6, 5)}

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def check_version(server: str, text: str) -> str | None:
    """A warning about this version of etcd, if there is one. Raises UsageRefused if unusable."""
    found = _VERSION.match(text)
    if found is None:
        raise UsageRefused(f"etcd at {server} has the version {text!r}, which cannot be read")
    version = (int(found[1]), int(found[2]), int(found[3]))
    if version < _OLDEST:
        raise UsageRefused(f"etcd at {server} is {text}: use 3.4 or newer, best a current 3.6")
    if _CORRUPTING[0] <= version <= _CORRUPTING[1]:
        raise UsageRefused(
            f"etcd at {server} is {text}, which can corrupt its data: use 3.5.3 or newer"
        )
    fixed = _LEASES_FIXED.get(version[:2])
    if fixed is not None and version < fixed:
        wanted = ".".join(map(str, fixed))
        return f"leases can end early or be renewed in vain: use {wanted} or newer"
    return None
