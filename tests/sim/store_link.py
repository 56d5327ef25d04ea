"""A broker's connection to the coordination store: slow, cut, or with responses that get lost."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from random import Random
from typing import Final, TypeVar

from fakes.memory_store import MemoryStore
from ottla.cluster.store import (
    ChangeBatch,
    Compacted,
    Compare,
    LeaseId,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
)

T = TypeVar("T")

_TIMEOUT_S: Final = 2.0  # of a call
_LOOK_S: Final = 0.05


class StoreFaults:
    """Faults of one machine's way to the store."""

    def __init__(self) -> None:
        self.is_cut = False
        self.loses_responses = False  # calls are made, and nobody learns what became of them
        self.holds_watch = False
        self.compacts = False  # a watch that lags finds its history gone

    def heal(self) -> None:
        self.is_cut = self.loses_responses = self.holds_watch = self.compacts = False


class StoreLink:
    """The store, as one broker reaches it."""

    limits = MemoryStore.limits
    can_fall_silent = True

    def __init__(self, store: MemoryStore, faults: StoreFaults, rng: Random) -> None:
        self._store = store
        self._faults = faults
        self._rng = rng
        self._is_closed = False

    async def get(self, key: str) -> Snapshot:
        return await self._call(self._store.get(key))

    async def range(self, prefix: str) -> Snapshot:
        return await self._call(self._store.range(prefix))

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        return await self._call(self._store.commit(writes, compares))

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._call(self._store.grant(ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._call(self._store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._call(self._store.revoke(lease))

    async def close(self) -> None:
        self._is_closed = True

    async def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        async with contextlib.aclosing(self._store.watch(prefix, after)) as batches:
            async for batch in batches:
                await asyncio.sleep(self._delay_s())
                while self._faults.is_cut or self._faults.holds_watch:
                    await asyncio.sleep(_LOOK_S)
                    if self._faults.compacts:
                        raise Compacted("the history is gone")
                yield batch

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            await asyncio.sleep(self._delay_s())
            if self._faults.is_cut or self._is_closed:
                await asyncio.sleep(_TIMEOUT_S)
                raise StoreUnavailable("the store did not respond")
            result = await call
        finally:
            if asyncio.iscoroutine(call):
                call.close()
        await asyncio.sleep(self._delay_s())
        if self._faults.is_cut or self._faults.loses_responses:
            await asyncio.sleep(_TIMEOUT_S)
            raise StoreUnavailable("the store did not respond")
        return result

    def _delay_s(self) -> float:
        return self._rng.uniform(0.0003, 0.003)
