"""A store whose calls are measured: what counts as a response, and what does not."""

import asyncio

import pytest

from fakes.memory_store import MemoryStore
from fakes.virtual_loop import VirtualLoop
from ottla.cluster.measured_store import MeasuredStore
from ottla.cluster.store import (
    NEVER,
    Compare,
    Conflict,
    LeaseId,
    LeaseLost,
    Put,
    Revision,
    Snapshot,
    StoreUnavailable,
)


class SlowStore(MemoryStore):
    """A store that takes half a second for a read."""

    async def range(self, prefix: str) -> Snapshot:
        await asyncio.sleep(0.5)
        return await super().range(prefix)


def test_a_store_is_up_as_the_last_call_found_it_and_refusals_are_responses() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        inner = SlowStore(loop)
        ups: list[float] = []
        store = MeasuredStore(inner, loop.monotonic_s, lambda: ups.append(loop.monotonic_s()))
        assert (store.limits, store.can_fall_silent) == (inner.limits, inner.can_fall_silent)
        lease = await store.grant(1000)
        await store.commit([Put("a", b"1", lease)])
        await store.keep_alive(lease)
        assert (await store.get("a")).entries[0].value == b"1"
        assert (await anext(store.watch("", Revision(0)))).revision == 1
        await store.range("")
        await store.revoke(lease)
        assert store.durations.count == 6, "a watch is not a call"
        assert store.durations.sum_s == pytest.approx(0.5)
        inner.is_reachable = False
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        assert not store.is_up
        inner.is_reachable = True
        with pytest.raises(LeaseLost):
            await store.keep_alive(LeaseId(99))
        assert store.is_up
        inner.is_reachable = False
        with pytest.raises(StoreUnavailable):
            await store.get("a")
        inner.is_reachable = True
        with pytest.raises(Conflict):
            await store.commit([Put("b", b"1")], [Compare("b", Revision(NEVER + 1))])
        assert store.is_up
        assert store.durations.count == 10
        assert len(ups) == 8, "every response counts, and no failure"
        await store.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(scenario(loop))
