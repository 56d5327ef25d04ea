"""How long a lease is certain to last."""

import asyncio

import pytest

from fakes.memory_store import MemoryStore
from fakes.virtual_loop import VirtualLoop
from ottla.cluster.lease import Lease
from ottla.cluster.store import LeaseId

RESPONSE_S = 3.0


class SlowStore(MemoryStore):
    """A store that does at once what it is asked for, and whose responses take three seconds."""

    async def grant(self, ttl_ms: int) -> LeaseId:
        granted = await super().grant(ttl_ms)
        await asyncio.sleep(RESPONSE_S)
        return granted

    async def keep_alive(self, lease: LeaseId) -> None:
        await super().keep_alive(lease)
        await asyncio.sleep(RESPONSE_S)


def test_the_time_of_a_lease_counts_from_when_it_was_asked_for() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        lease = await Lease.grant(SlowStore(loop), 10_000)
        assert lease.left_s == pytest.approx(10 - RESPONSE_S)
        await asyncio.sleep(4)
        await lease.renew()
        assert lease.left_s == pytest.approx(10 - RESPONSE_S)
        await asyncio.sleep(60)
        assert lease.left_s == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
