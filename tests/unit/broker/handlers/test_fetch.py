"""Fetch: responses that leave at once, long polls, and sessions that list only what changed."""

import asyncio
import struct
from pathlib import Path

import pytest

from fakes import build
from fakes.handled import Handled, handle
from fakes.loopback import until
from ottla.broker.fetch_sessions import SESSION_PARTITIONS_MAX
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.latency import Latency
from ottla.broker.pending import Pending, Response
from ottla.errors import ErrorCode
from ottla.model import Offset, ProducerId, TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.records.batch import read_header
from ottla.records.record_slices import empty_batch
from ottla.replication.partition import ACKS_ALL
from ottla.storage.index import AbortedTransaction
from ottla.storage.log_read import FileRange

VERSION = 12  # names topics, and has sessions
HEADER_BYTES = 9  # length, correlation id, no tagged fields
WAIT_MS = 60_000


def request_of(
    *partitions: int, wait_ms: int = 0, session_id: int = 0, session_epoch: int = -1
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                    for index in partitions
                ],
            )
        ]
        if partitions
        else [],
        session_id=session_id,
        session_epoch=session_epoch,
    )


def take(fetch: Fetch, request: FetchRequest) -> Response:
    response = fetch.take(memoryview(encode(request, VERSION)), 0, VERSION, 7)
    assert not asyncio.iscoroutine(response)
    return response


def decoded(response: Response) -> FetchResponse:
    """A response without records, which is bytes alone."""
    assert isinstance(response, list)
    parts = [part for part in response if isinstance(part, bytes)]
    assert parts == response
    return decode(FetchResponse, VERSION, b"".join(parts), HEADER_BYTES)


def listed(response: FetchResponse) -> list[int]:
    return [one.partition_index for topic in response.responses for one in topic.partitions]


@pytest.mark.parametrize("unknown", [[7], [0, 7]])
def test_an_error_is_not_waited_with(tmp_path: Path, unknown: list[int]) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        response = decoded(take(Fetch(handled.services), request_of(*unknown, wait_ms=WAIT_MS)))
        last = response.responses[0].partitions[-1]
        assert last.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    handle(tmp_path, scenario)


def test_a_fetch_that_may_not_wait_has_its_response_at_once(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        assert listed(decoded(take(Fetch(handled.services), request_of(0)))) == [0]

    handle(tmp_path, scenario)


def test_a_long_poll_is_complete_when_a_partition_grows(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", partitions=2)
        pending = take(Fetch(handled.services), request_of(0, 1, wait_ms=WAIT_MS))
        assert isinstance(pending, Pending)
        assert pending.is_barrier
        complete = asyncio.Event()
        pending.on_complete(complete.set)
        partition = handled.services.replicas.find(TopicPartition("t", 1))
        partition.append(memoryview(build.batch()), ACKS_ALL, build.NOW_MS)
        await complete.wait()
        assert isinstance(pending.parts, list)
        assert len(pending.parts) == 3, "bytes, a range of the log, bytes"

    handle(tmp_path, scenario)


def test_a_long_poll_of_a_client_that_has_gone_reads_no_more(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        fetch = Fetch(handled.services)
        gone, other = (take(fetch, request_of(0, wait_ms=WAIT_MS)) for _ in range(2))
        assert isinstance(gone, Pending)
        assert isinstance(other, Pending)
        gone.abandon()
        complete = asyncio.Event()
        other.on_complete(complete.set)
        partition = handled.services.replicas.find(TopicPartition("t", 0))
        partition.append(memoryview(build.batch()), ACKS_ALL, build.NOW_MS)
        await complete.wait()
        assert gone.parts is None

    handle(tmp_path, scenario)


def test_fetches_that_wait_have_their_responses_when_the_broker_stops(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        fetch = Fetch(handled.services)
        one, other, gone = (take(fetch, request_of(0, wait_ms=WAIT_MS)) for _ in range(3))
        assert isinstance(one, Pending)
        assert isinstance(other, Pending)
        assert isinstance(gone, Pending)
        gone.abandon()
        fetch.close()
        assert [listed(decoded(pending.parts)) for pending in (one, other)] == [[0], [0]]
        assert gone.parts is None

    handle(tmp_path, scenario)


def test_a_fetch_of_very_many_partitions_looks_no_longer_when_the_broker_stops(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        fetch = Fetch(handled.services)
        many = request_of(*[0] * SESSION_PARTITIONS_MAX, wait_ms=5 * WAIT_MS)
        response = fetch.take(memoryview(encode(many, VERSION)), 0, VERSION, 7)
        assert asyncio.iscoroutine(response)
        reading = asyncio.ensure_future(response)
        await asyncio.sleep(0)
        fetch.close()
        assert len(listed(decoded(await reading))) == SESSION_PARTITIONS_MAX

    handle(tmp_path, scenario)


def test_a_session_lists_every_partition_first_and_then_what_changed(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", partitions=2)
        fetch = Fetch(handled.services)
        first = decoded(take(fetch, request_of(0, 1, session_id=0, session_epoch=0)))
        assert first.session_id > 0
        assert listed(first) == [0, 1]
        more = request_of(session_id=first.session_id, session_epoch=1)
        assert listed(decoded(take(fetch, more))) == []

    handle(tmp_path, scenario)


class HeldClock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_wait_for_data_does_not_count_as_latency(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        fetch = Fetch(handled.services)
        fetch.monotonic_s = clock = HeldClock()
        latency = Latency(clock)
        clock.now_s = 10.5
        pending = take(fetch, request_of(0, wait_ms=WAIT_MS))
        assert isinstance(pending, Pending)
        pending.time(latency, 10.0)
        clock.now_s = 70.0
        fetch.close()
        assert (latency.count, latency.sum_s) == (1, 0.5)

    handle(tmp_path, scenario)


def test_transactions_aborted_in_what_is_read_over_are_not_named(tmp_path: Path) -> None:
    """Their markers are read over as well: a client would drop all that follows of a producer."""
    empty = empty_batch(read_header(build.batch()), keeps_producer=False)

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        partition = handled.services.replicas.find(TopicPartition("t", 0))
        partition.log.append_as_follower(empty, build.NOW_MS)
        aborted = AbortedTransaction(ProducerId(7), Offset(0), Offset(0), Offset(1))
        partition.log.active_segment.indexes.aborted.append(aborted)
        partition.log.roll(build.NOW_MS)
        settled = asyncio.Event()
        receipt = partition.append(memoryview(build.batch()), ACKS_ALL, build.NOW_MS)
        partition.wait_settled(receipt.end_offset, ACKS_ALL, lambda _: settled.set())
        await settled.wait()
        request = request_of(0)
        request.isolation_level = 1
        response = take(Fetch(handled.services), request)
        assert isinstance(response, list)
        head, records, *_ = response
        assert isinstance(records, FileRange)
        assert (records.start_offset, records.end_offset) == (1, 2)
        assert isinstance(head, bytes)
        assert struct.pack(">qq", 7, 0) not in head, "producer and first offset"

    handle(tmp_path, scenario)


def test_partitions_without_room_in_a_response_come_with_the_next_ones(tmp_path: Path) -> None:
    """Their reader does not name them again, and nothing happens in them meanwhile."""

    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", partitions=3)
        for index in range(3):
            partition = handled.services.replicas.find(TopicPartition("t", index))
            partition.append(memoryview(build.batch()), ACKS_ALL, build.NOW_MS)
        leaders = handled.services.replicas.leaders.values()
        await until(lambda: all(one.high_watermark == 1 for one in leaders))
        fetch = Fetch(handled.services)
        opening = request_of(0, 1, 2, session_epoch=0)
        opening.max_bytes = 1
        assert with_records(take(fetch, opening)) == [0]
        for read in (0, 1):
            going_on = request_of(read, session_id=1, session_epoch=read + 1)
            going_on.topics[0].partitions[0].fetch_offset = 1
            going_on.max_bytes = 1
            assert with_records(take(fetch, going_on)) == [read + 1]

    handle(tmp_path, scenario)


def with_records(response: Response) -> list[int]:
    """The partitions that a response has records of."""
    assert isinstance(response, list)
    whole = b"".join(
        part if isinstance(part, bytes) else bytes(part.size_bytes) for part in response
    )
    found = decode(FetchResponse, VERSION, whole, HEADER_BYTES)
    partitions = [one for topic in found.responses for one in topic.partitions]
    return [one.partition_index for one in partitions if one.records]
