"""A coordination store in memory: linearizable because every call runs through at once.

It must behave as the real ones do; tests/unit/cluster/test_store.py sees to that.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from ottla.clock import Clock
from ottla.cluster.store import (
    NEVER,
    SMALLEST_LIMITS,
    ChangeBatch,
    Compacted,
    Compare,
    Conflict,
    Delete,
    Entry,
    KeyChange,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
    check_size,
)


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    expires_s: float
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """Shared by all brokers of a test. `is_reachable = False` makes every call fail."""

    limits = SMALLEST_LIMITS
    can_fall_silent = False

    def __init__(self, clock: Clock, *, revisions_kept: int = 1000) -> None:
        self.is_reachable = True
        self._clock = clock
        self._revisions_kept = revisions_kept
        self._revision = NEVER
        self._entries: dict[str, Entry] = {}
        self._history: list[ChangeBatch] = []  # one per revision, the newest last
        self._leases: dict[LeaseId, _Lease] = {}
        self._last_lease = 0
        self._advanced = asyncio.Event()
        self._is_closed = False

    async def get(self, key: str) -> Snapshot:
        self._begin()
        found = (self._entries[key],) if key in self._entries else ()
        return Snapshot(self._revision, found)

    @property
    def revision(self) -> Revision:
        return self._revision

    def snapshot(self) -> Snapshot:
        """Everything, for a test that looks from outside."""
        return Snapshot(self._revision, tuple(self._entries[key] for key in sorted(self._entries)))

    async def range(self, prefix: str) -> Snapshot:
        self._begin()
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self._revision, tuple(self._entries[key] for key in keys))

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        check_size(writes, compares, self.limits)
        self._begin()
        for compare in compares:
            entry = self._entries.get(compare.key)
            if (entry.mod_revision if entry else NEVER) != compare.mod_revision:
                raise Conflict(compare.key)
        for write in writes:
            if isinstance(write, Put) and write.lease is not None:
                self._lease(write.lease)
        changes = [change for write in writes if (change := self._write(write)) is not None]
        return self._record(changes)

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        while True:
            self._begin()
            oldest = self._revision - len(self._history)
            if after < oldest:
                raise Compacted(f"revisions up to {oldest} are gone")
            fresh = self._history[after - oldest :]
            advanced = self._advanced
            for batch in fresh:
                after = batch.revision
                below = tuple(item for item in batch.changes if item.key.startswith(prefix))
                yield ChangeBatch(batch.revision, below)
            if not fresh:
                await advanced.wait()

    async def grant(self, ttl_ms: int) -> LeaseId:
        self._begin()
        self._last_lease += 1
        lease = LeaseId(self._last_lease)
        self._leases[lease] = _Lease(ttl_ms, 0.0)
        self._extend(self._leases[lease])
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        self._begin()
        self._extend(self._lease(lease))

    async def revoke(self, lease: LeaseId) -> None:
        self._begin()
        self._end([lease])

    async def close(self) -> None:
        self._is_closed = True
        self._wake()

    def expire_leases(self) -> None:
        """End the leases whose time is over. Timers do it; whoever turns the clock by hand must."""
        now_s = self._clock.monotonic_s()
        self._end([lease for lease, held in self._leases.items() if held.expires_s <= now_s])

    def expire_key(self, key: str) -> None:
        """End the lease that a key is under, whatever its time."""
        self._end([lease for lease, held in self._leases.items() if key in held.keys])

    def disconnect_watches(self) -> None:
        """Wake all watches, so that those who look find the store unreachable."""
        self._wake()

    def _begin(self) -> None:
        if self._is_closed or not self.is_reachable:
            raise StoreUnavailable("the memory store is closed or unreachable")
        self.expire_leases()

    def _write(self, write: Write) -> KeyChange | None:
        match write:
            case Put(key, value, lease):
                self._detach(key)
                self._entries[key] = Entry(key, value, Revision(self._revision + 1))
                if lease is not None:
                    self._leases[lease].keys.add(key)
                return KeyChange(key, value)
            case Delete(key):
                self._detach(key)
                return KeyChange(key, None) if self._entries.pop(key, None) else None

    def _detach(self, key: str) -> None:
        for held in self._leases.values():
            held.keys.discard(key)

    def _lease(self, lease: LeaseId) -> _Lease:
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} is over")
        return self._leases[lease]

    def _extend(self, held: _Lease) -> None:
        held.expires_s = self._clock.monotonic_s() + held.ttl_ms / 1000
        asyncio.get_running_loop().call_later(held.ttl_ms / 1000, self.expire_leases)

    def _end(self, leases: Sequence[LeaseId]) -> None:
        changes: list[KeyChange] = []
        for lease in leases:
            held = self._leases.pop(lease, None)
            for key in sorted(held.keys) if held else ():
                del self._entries[key]
                changes.append(KeyChange(key, None))
        self._record(changes)

    def _record(self, changes: Sequence[KeyChange]) -> Revision:
        if changes:
            self._revision = Revision(self._revision + 1)
            self._history.append(ChangeBatch(self._revision, tuple(changes)))
            del self._history[: -self._revisions_kept]
            self._wake()
        return self._revision

    def _wake(self) -> None:
        self._advanced.set()
        self._advanced = asyncio.Event()
