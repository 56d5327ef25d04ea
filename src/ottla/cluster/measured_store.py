"""A coordination store whose calls are counted: whether they succeed, and how long they take."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from ottla.cluster.store import (
    ChangeBatch,
    CommitLimits,
    Compare,
    Conflict,
    CoordinationStore,
    LeaseId,
    LeaseLost,
    Revision,
    Snapshot,
    StoreUnavailable,
    Write,
)
from ottla.telemetry import Histogram

Result = TypeVar("Result")


class MeasuredStore:
    """Another store, measured. A refusal of the store counts as a success: it has responded."""

    def __init__(
        self,
        store: CoordinationStore,
        monotonic_s: Callable[[], float],
        note_up: Callable[[], None],
    ) -> None:
        """`note_up` is called when the store has responded."""
        self.is_up = True  # as the last call that has ended found it
        self.durations = Histogram()
        self._store = store
        self._monotonic_s = monotonic_s
        self._note_up = note_up

    @property
    def limits(self) -> CommitLimits:
        return self._store.limits

    @property
    def can_fall_silent(self) -> bool:
        return self._store.can_fall_silent

    async def get(self, key: str) -> Snapshot:
        return await self._measured(self._store.get(key))

    async def range(self, prefix: str) -> Snapshot:
        return await self._measured(self._store.range(prefix))

    async def commit(self, writes: Sequence[Write], compares: Sequence[Compare] = ()) -> Revision:
        return await self._measured(self._store.commit(writes, compares))

    def watch(self, prefix: str, after: Revision) -> AsyncGenerator[ChangeBatch, None]:
        return self._store.watch(prefix, after)

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._measured(self._store.grant(ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._measured(self._store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._measured(self._store.revoke(lease))

    async def close(self) -> None:
        await self._store.close()

    async def _measured(self, call: Awaitable[Result]) -> Result:
        begun_s = self._monotonic_s()
        try:
            result = await call
        except StoreUnavailable:
            self._note(begun_s, is_up=False)
            raise
        except (Conflict, LeaseLost):
            self._note(begun_s, is_up=True)
            raise
        self._note(begun_s, is_up=True)
        return result

    def _note(self, begun_s: float, *, is_up: bool) -> None:
        self.durations.observe(self._monotonic_s() - begun_s)
        self.is_up = is_up
        if is_up:
            self._note_up()
