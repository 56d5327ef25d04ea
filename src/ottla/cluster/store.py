"""What is asked of a coordination store: versioned keys, compare-and-set, watches, leases.

The words are etcd's, so that etcd can serve them as they are: every commit that changes something
gets the next revision of the whole store, and a key remembers the revision that last wrote it.
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
    """One key, its value, and the revision that wrote it."""

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
    """Write a key; under a lease, the key lives no longer than the lease does."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; one that does not exist stays as it is and counts as no change."""

    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a commit: the key was last written by exactly this revision."""

    key: str
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What one key holds from now on; None when it is gone."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Everything one revision changed below a watched prefix; possibly nothing."""

    revision: Revision
    changes: tuple[KeyChange, ...]


class Conflict(Exception):
    """A compared key was written by somebody else: look again, then decide again."""


class Compacted(Exception):
    """The history after the asked revision is no longer complete: read everything again."""


class LeaseLost(Exception):
    """The lease ran out or was revoked; the keys under it are gone."""


class StoreUnavailable(ApiError):
    """The store did not answer. Whether the last commit happened is not known."""

    code = ErrorCode.REQUEST_TIMED_OUT


class CoordinationStore(Protocol):
    """A small linearizable store. Every call may raise StoreUnavailable."""

    async def get(self, key: str) -> Snapshot:
        """The one entry of this key, or none, and the store's revision."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`; with "", all there are."""
        ...

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        """Do all writes, each to a different key, if all compares hold; then it is durable.

        Returns the store's revision afterwards. Raises Conflict if a compare does not hold, and
        LeaseLost if a lease to write under is gone; nothing is written then.
        """
        ...

    def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        """Every revision later than `after`, in order and without gaps, for as long as asked.

        Raises Compacted when the store no longer remembers what came after `after`.
        """
        ...

    async def grant(self, ttl_ms: int) -> LeaseId:
        """A lease that runs out `ttl_ms` after it was granted or last kept alive."""
        ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Give the lease its whole time again. Raises LeaseLost when it is too late."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease now, and the keys under it; ending it twice changes nothing."""
        ...

    async def close(self) -> None:
        """Stop every watch and let go of the store; leases run on until their time is over."""
        ...
