"""Settling messages when responses are lost."""

import asyncio
from collections.abc import Sequence

import pytest

from ottla.client.errors import ClientError, ConnectionLost, Refused
from ottla.client.share_records import AcknowledgeKind, ShareRecord
from ottla.errors import ErrorCode
from ottla.model import TopicPartition, Uuid
from ottla.records.batch import Record
from ottla.work.core import QueueCore
from ottla.work.errors import LeaseLost
from ottla.work.leases import Lease, LeaseState
from ottla.work.settlement import DONE

LOST = ConnectionLost("the connection ended")
NOT_HELD = Refused(ErrorCode.INVALID_RECORD_STATE, "jobs-0")
MOVED = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "jobs-0")


class FakeConsumer:
    """A consumer whose acknowledgements fail in a given order, and then succeed."""

    def __init__(self, *failures: ClientError) -> None:
        self._failures = list(failures)
        self._said: list[ShareRecord] = []

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeKind, **more: object) -> None:
        self._said.append(record)

    async def commit(self) -> None:
        for record in self._said:
            record.failure = self._failures.pop(0) if self._failures else None
        self._said.clear()

    async def renew(self, records: Sequence[ShareRecord]) -> None:
        return


class SilentConsumer(FakeConsumer):
    """A consumer whose first acknowledgement has no response."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def commit(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        await super().commit()


def held(consumer: FakeConsumer, lock_left_s: float = 30.0) -> tuple[QueueCore, Lease]:
    """A core with this consumer, and the lease of a message that it has received."""
    core = QueueCore("jobs", servers="127.0.0.1:1", group="g", timeout_s=1, lease_max_s=60.0)
    core._consumer = consumer  # type: ignore[assignment]
    now_s = asyncio.get_running_loop().time()
    record = ShareRecord(
        TopicPartition("jobs", 0),
        Uuid(b"t" * 16),
        Record(),
        1,
        now_s + lock_left_s,
        None,  # type: ignore[arg-type]
    )
    return core, Lease(record, now_s, 30.0, lambda: True)


def settle(*failures: ClientError, lock_left_s: float = 30.0, is_durable: bool = True) -> Lease:
    """The lease of a message after its acknowledgement, which fails so at first."""

    async def run() -> Lease:
        core, lease = held(FakeConsumer(*failures), lock_left_s)
        core._is_durable = is_durable
        leases.append(lease)
        await core.settle(lease, DONE)
        return lease

    leases: list[Lease] = []
    try:
        return asyncio.run(run())
    except LeaseLost:
        assert leases[0].state is LeaseState.LOST
        raise


@pytest.mark.parametrize("failures", [(), (LOST,), (MOVED,), (MOVED, LOST, MOVED)])
def test_what_passes_is_tried_again(failures: tuple[ClientError, ...]) -> None:
    assert settle(*failures).state is LeaseState.SETTLED


def test_a_refusal_ends_the_lease() -> None:
    with pytest.raises(LeaseLost, match="jobs-0@0"):
        settle(NOT_HELD)
    with pytest.raises(LeaseLost):
        settle(MOVED, NOT_HELD)


def test_a_refusal_after_a_lost_response_means_that_the_first_one_counted() -> None:
    assert settle(LOST, NOT_HELD).state is LeaseState.SETTLED


def test_unless_the_lock_may_have_ended_in_between() -> None:
    with pytest.raises(LeaseLost):
        settle(LOST, NOT_HELD, lock_left_s=1.0)


def test_without_durable_leases_a_lost_connection_ends_them() -> None:
    with pytest.raises(LeaseLost):
        settle(LOST, is_durable=False)


def test_an_acknowledgement_that_was_cancelled_can_be_made_again() -> None:
    async def run() -> None:
        consumer = SilentConsumer()
        core, lease = held(consumer)
        settling = asyncio.create_task(core.settle(lease, DONE))
        await consumer.asked.wait()
        settling.cancel()
        await asyncio.wait([settling])
        states = [lease.state]
        await core.settle(lease, DONE)
        assert [*states, lease.state] == [LeaseState.HELD, LeaseState.SETTLED]

    asyncio.run(run())


def test_an_extended_lease_is_renewed_again_though_its_longest_time_was_over() -> None:
    async def run() -> None:
        core, lease = held(FakeConsumer())
        core._leases.add(lease)
        assert core._leases.take_overdue(lease.begun_s + 60.0) == [lease]
        await core.extend(lease)
        assert core._leases.due(lease.record.lock_end_s) == [lease]

    asyncio.run(run())
