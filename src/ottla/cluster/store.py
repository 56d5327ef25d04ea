"""The interface of a coordination store: versioned keys, compare-and-set, watches, leases.

Its semantics are etcd's, so that etcd can implement it: every commit that changes something gets
a revision larger than all before, and a key has the revision that last wrote it. Revisions may
begin anywhere and skip numbers: others may use the same server, below another prefix.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType, Protocol

from ottla.errors import ApiError, ErrorCode

Revision = NewType("Revision", int)  # of the whole server, rises with every change
LeaseId = NewType("LeaseId", int)

NEVER: Final = Revision(0)  # the mod revision of a key that does not exist

LEASE_TTL_MIN_MS: Final = 2000  # a shorter lease may be made this long


class CommitLimits(NamedTuple):
    """How much a store takes in one commit."""

    writes: int
    compares: int
    size_bytes: int  # of the keys and values that are written


SMALLEST_LIMITS: Final = CommitLimits(64, 100, 1 << 20)  # every kind of store takes as much


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value, and the revision that wrote it."""

    key: str
    value: bytes
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Entries in the order of their keys, all as they were at one revision.

    The revision may be that of a change elsewhere on the server, which no watch reports.
    """

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
    """Everything that one revision changed below a watched prefix; may be empty."""

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


def check_size(
    writes: Sequence[Write], compares: Sequence[Compare], limits: CommitLimits = SMALLEST_LIMITS
) -> None:
    """Assert that a commit keeps a store's limits, and writes each key once."""
    assert len({write.key for write in writes}) == len(writes), "one write per key"
    assert len(writes) <= limits.writes, f"{len(writes)} writes in one commit"
    assert len(compares) <= limits.compares, f"{len(compares)} compares in one commit"
    size_bytes = sum(
        len(write.key) + (len(write.value) if isinstance(write, Put) else 0) for write in writes
    )
    assert size_bytes <= limits.size_bytes, f"{size_bytes} bytes in one commit"


class CoordinationStore(Protocol):
    """A small linearizable store. Every call may raise StoreUnavailable."""

    @property
    def limits(self) -> CommitLimits:
        """How much a commit may have; more is a defect of the caller."""
        ...

    @property
    def can_fall_silent(self) -> bool:
        """True if a watch may stop reporting without an error: then expect regular changes."""
        ...

    async def get(self, key: str) -> Snapshot:
        """The entry of this key, if any, and the store's revision."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`; all entries for ""."""
        ...

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        """Apply all writes, each to a different key, if all compares hold; durable on return.

        Returns the revision that it made, or if it changes nothing the server's. Raises Conflict
        if a compare does not hold, and LeaseLost if a lease to write under is gone; nothing is
        written then. A commit is sent once: after StoreUnavailable it may have happened.
        """
        ...

    def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        """Every revision later than `after` that changed something below `prefix`, in order.

        Other revisions may come as empty batches. Ends when closed. Raises Compacted when the
        history after `after` is incomplete.
        """
        ...

    async def grant(self, ttl_ms: int) -> LeaseId:
        """A lease that expires `ttl_ms` after it was granted or last kept alive.

        It may also be lost earlier, or expire up to two seconds later.
        """
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
