"""The lease of a registration, and how long it is certain to last."""

import asyncio

from ottla.cluster.store import CoordinationStore, LeaseId


class Lease:
    """A lease of the store. Its time counts from when a renewal was sent, not from its response."""

    def __init__(self, store: CoordinationStore, lease_id: LeaseId, ttl_s: float, sent_s: float):
        """Use `grant`."""
        self.id = lease_id
        self.ttl_s = ttl_s
        self._store = store
        self._sent_s = sent_s  # when the last renewal that succeeded was sent

    @classmethod
    async def grant(cls, store: CoordinationStore, ttl_ms: int) -> "Lease":
        sent_s = asyncio.get_running_loop().time()
        return cls(store, await store.grant(ttl_ms), ttl_ms / 1000, sent_s)

    @property
    def left_s(self) -> float:
        """Seconds for which the lease is certain to last without another renewal."""
        return max(0.0, self._sent_s + self.ttl_s - asyncio.get_running_loop().time())

    async def renew(self) -> None:
        """Renew for the whole time. Raises LeaseLost when the store does not know the lease."""
        sent_s = asyncio.get_running_loop().time()
        await self._store.keep_alive(self.id)
        self._sent_s = sent_s

    async def revoke(self) -> None:
        await self._store.revoke(self.id)
