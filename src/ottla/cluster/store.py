"""The interface of a coordination store: versioned keys, compare-and-set, watches, leases.

Its semantics are etcd's, so that etcd can implement it: every commit that changes something gets
the next revision of the whole store, and a key has the revision that last wrote it.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from ottla.errors import ApiError, ErrorCode

Revision = NewType("Revision", int)  # how often the whole store has changed
LeaseId = NewType("LeaseId", int)

NEVER: Final = Revision(0)  # the mod revision of a key that does not exist


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value, and the revision that wrote it."""

    key: str
    value: bytes
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Entries in the order of their keys, all as they were at one revision."""

    revision: Revision
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; under a lease, the key is deleted when the lease ends."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; removing one that does not exist is no change."""

    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a commit: the key was last written by exactly this revision."""

    key: str
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The new value of one key; None when it was removed."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Everything one revision changed below a watched prefix; possibly nothing."""

    revision: Revision
    changes: tuple[KeyChange, ...]


class Conflict(Exception):
    """A compared key was changed by another process: read again, then decide again."""


class Compacted(Exception):
    """The history after the requested revision is incomplete: read everything again."""


class LeaseLost(Exception):
    """The lease expired or was revoked; the keys under it are removed."""


class StoreUnavailable(ApiError):
    """The store did not respond. Whether the last commit happened is unknown."""

    code = ErrorCode.REQUEST_TIMED_OUT


class CoordinationStore(Protocol):
    """A small linearizable store. Every call may raise StoreUnavailable."""

    async def get(self, key: str) -> Snapshot:
        """The entry of this key, if any, and the store's revision."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`; all entries for ""."""
        ...

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        """Apply all writes, each to a different key, if all compares hold; durable on return.

        Returns the store's revision afterwards. Raises Conflict if a compare does not hold, and
        LeaseLost if a lease to write under is gone; nothing is written then.
        """
        ...

    def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        """Every revision later than `after`, in order and without gaps, until closed.

        Raises Compacted when the history after `after` is incomplete.
        """
        ...

    async def grant(self, ttl_ms: int) -> LeaseId:
        """A lease that expires `ttl_ms` after it was granted or last kept alive."""
        ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Renew the lease for its whole time. Raises LeaseLost when it has expired."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease now, and the keys under it; ending it twice changes nothing."""
        ...

    async def close(self) -> None:
        """Stop every watch and close the store; leases run until they expire."""
        ...
