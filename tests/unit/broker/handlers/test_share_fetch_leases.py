"""A share fetch whose leases are durable is answered when they are written."""

import asyncio
from collections.abc import Callable

from ottla.broker.handlers.share_fetch import _asked
from ottla.broker.led_share_partition import Done, Taken, Wanted
from ottla.broker.share_exchange import FetchResponse, ShareExchange
from ottla.cluster.image import ClusterImage
from ottla.errors import ApiError, CoordinatorNotAvailable, ErrorCode
from ottla.model import Offset, Uuid
from ottla.protocol.messages.share_groups import ShareFetchRequest, ShareFetchResponse
from ottla.queues.share_limits import ShareLimits
from ottla.queues.share_partition import Acquired
from ottla.queues.share_sessions import SessionKey, SharedPartition, ShareSession
from ottla.queues.share_state import SharePartitionKey


class FakeLed:
    """A share partition with one record, whose state is written when the test says so."""

    problem: ApiError | None = None

    def __init__(self) -> None:
        self.writing: list[Done] = []

    def acquire(self, member: str, wanted: Wanted) -> Taken:
        return Taken(b"records", [Acquired(Offset(0), Offset(0), 1)], False, True)

    def persist(self, done: Done) -> None:
        self.writing.append(done)


class FakePartitions:
    """The share partitions of a broker that has one."""

    bytes_max = 1 << 20
    wait_max_ms = 1000

    def __init__(self) -> None:
        self.led = FakeLed()
        self.waiting: dict[SessionKey, Callable[[], None]] = {}

    def image(self) -> ClusterImage:
        return ClusterImage()

    def find(self, key: SharePartitionKey) -> FakeLed:
        return self.led

    def settings_of(self, group_id: str) -> object:
        class Settings:
            limits = ShareLimits()

        return Settings


def fetch(problem: ApiError | None) -> ShareFetchResponse:
    """The response to a fetch whose leases are written, or not; there is none before."""

    async def run() -> ShareFetchResponse:
        partitions = FakePartitions()
        session = ShareSession(SessionKey("g", "m"), None)
        session.partitions[SharedPartition(Uuid(b"t" * 16), 0)] = None
        request = ShareFetchRequest(
            group_id="g", member_id="m", max_records=10, max_bytes=1 << 20, max_wait_ms=100
        )
        exchange = ShareExchange(
            partitions,  # type: ignore[arg-type]
            session,
            _asked(request),
            FetchResponse(),
        )
        deferred = exchange.begin()
        assert isinstance(deferred, FetchResponse), "the lease is not written yet"
        assert not deferred.is_ready
        (done,) = partitions.led.writing
        done(problem)
        assert deferred.is_ready
        response = deferred.message()
        assert isinstance(response, ShareFetchResponse)
        return response

    return asyncio.run(run())


def test_records_are_sent_when_their_leases_are_written() -> None:
    (partition,) = fetch(None).responses[0].partitions
    assert (partition.error_code, partition.records) == (0, b"records")
    assert len(partition.acquired_records) == 1


def test_records_whose_leases_could_not_be_written_are_not_sent() -> None:
    (partition,) = fetch(CoordinatorNotAvailable("lost")).responses[0].partitions
    assert partition.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not partition.records
    assert not partition.acquired_records
