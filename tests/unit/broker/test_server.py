"""Who is let in, what they may hold, and when they must go."""

import asyncio
import logging
import socket
import struct

import pytest

from fakes.loopback import Client, Dispatch, Serving, framed, run, serving, turns, until
from ottla.broker.connection import Connection
from ottla.broker.pending import Pending, Response
from ottla.broker.receive_budget import BufferPool
from ottla.errors import ProtocolViolation
from ottla.model import Endpoint

REQUEST = b"request!"
BUDGET = 1 << 20  # the smallest that can be set


def echo(frame: memoryview, connection: Connection) -> Response:
    return framed(bytes(frame))


def promising(promises: list[Pending]) -> Dispatch:
    """Every request gets a promise of an answer, which the test keeps when it likes."""

    def promise(frame: memoryview, connection: Connection) -> Response:
        promises.append(Pending(is_barrier=False))
        return promises[-1]

    return promise


def silent(frame: memoryview, connection: Connection) -> Response:
    return None


def test_connections_beyond_a_limit_are_refused_until_others_have_left() -> None:
    async def scenario() -> None:
        async with serving(echo, max_connections_per_ip="2") as served:
            first, second = await served.connect_admitted(), await served.connect_admitted()
            for _ in range(3):
                refused = await served.connect()
                assert await refused.is_closed()
            assert served.server.refused_count == 3
            second.socket.close()
            await until(lambda: len(served.server.connections) == 1)
            third = await served.connect_admitted()
            for client in (first, third):
                client.send(framed(REQUEST))
                assert await client.receive_frame() == REQUEST

    run(scenario())


def test_a_refused_connection_that_talks_all_the_same_is_not_heard() -> None:
    async def scenario() -> None:
        taken = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(bytes(frame))
            return None

        async with serving(note, max_connections="1") as served:
            await served.connect_admitted()
            for _ in range(20):
                refused = await served.connect()
                refused.send(framed(REQUEST) * 10)
                assert await refused.is_closed()
            assert taken == []
            assert served.defects == []

    run(scenario())


def test_whoever_is_silent_too_long_is_closed() -> None:
    async def scenario() -> None:
        async with serving(echo, connections_max_idle_ms="60000") as served:
            idle, lively = await served.connect_admitted(), await served.connect_admitted()
            served.clock.shift_s = 59
            lively.send(framed(REQUEST))
            assert await lively.receive_frame() == REQUEST
            served.server.sweep()
            assert len(served.server.connections) == 2
            served.clock.shift_s = 61
            served.server.sweep()
            assert await idle.is_closed()
            assert len(served.server.connections) == 1

    run(scenario())


def test_whoever_waits_for_us_is_not_silent() -> None:
    async def scenario() -> None:
        promises = []

        def promise(frame: memoryview, connection: Connection) -> Response:
            promises.append(Pending(is_barrier=True))
            return promises[-1]

        async with serving(promise, connections_max_idle_ms="60000") as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST))
            await until(lambda: bool(promises))
            served.clock.shift_s = 300
            served.server.sweep()
            promises[0].complete(framed(b"at last"))
            assert await client.receive_frame() == b"at last"
            served.clock.shift_s += 59
            served.server.sweep()
            await turns(5)
            assert len(served.server.connections) == 1, "its silence began with its answer"
            served.clock.shift_s += 2
            served.server.sweep()
            assert await client.is_closed()

    run(scenario())


def test_whoever_does_not_take_its_answers_is_closed_like_the_silent() -> None:
    async def scenario() -> None:
        def answer(frame: memoryview, connection: Connection) -> Response:
            return framed(bytes(16 << 20))

        async with serving(answer, connections_max_idle_ms="60000") as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST))
            (connection,) = served.server.connections
            await until(lambda: not connection.is_idle)
            await turns()
            served.clock.shift_s = 61
            served.server.sweep()
            await until(lambda: not served.server.connections)

    run(scenario())


def test_a_request_that_does_not_arrive_in_time_ends_its_connection() -> None:
    async def scenario() -> None:
        async with serving(echo, request_read_timeout_ms="30000") as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST)[:6])
            await until(lambda: served.server.budget.used_bytes > 0)
            served.clock.shift_s = 29
            client.send(b"q")  # a byte now and then does not help
            await turns(5)
            served.server.sweep()
            assert len(served.server.connections) == 1
            served.clock.shift_s = 31
            served.server.sweep()
            assert await client.is_closed()
            assert served.server.violation_count == 1

    run(scenario())


def test_the_time_behind_a_long_poll_does_not_count_against_a_request() -> None:
    async def scenario() -> None:
        promises = []

        def promise(frame: memoryview, connection: Connection) -> Response:
            promises.append(Pending(is_barrier=True))
            return promises[-1]

        async with serving(promise, request_read_timeout_ms="30000") as served:
            client = await served.connect_admitted()
            # A long poll, a whole request that has to wait for it, and the beginning of a third.
            client.send(framed(REQUEST) * 2 + framed(REQUEST)[:6])
            await until(lambda: bool(promises))
            served.clock.shift_s = 300
            promises[0].complete(framed(REQUEST))
            await until(lambda: len(promises) == 2)
            served.server.sweep()
            await turns(5)
            client.send(framed(REQUEST)[6:])
            promises[1].complete(framed(REQUEST))
            await until(lambda: len(promises) == 3)

    run(scenario())


def test_a_peer_that_hangs_up_behind_its_long_poll_is_noticed_by_the_sweep() -> None:
    async def scenario() -> None:
        promises = []

        def promise(frame: memoryview, connection: Connection) -> Response:
            promises.append(Pending(is_barrier=True))
            return promises[-1]

        async with serving(promise) as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST) * 2)
            await until(lambda: bool(promises))
            served.server.sweep()
            assert len(served.server.connections) == 1
            client.socket.close()
            await turns(5)
            served.server.sweep()
            await until(lambda: not served.server.connections)

    run(scenario())


async def begin_large(served: Serving, count: int) -> None:
    """So many connections, each in the middle of a request that needs much memory."""
    for _ in range(count):
        client = await served.connect_admitted()
        await client.send_all(struct.pack(">i", 3_000_000) + bytes(700_000))


def test_large_requests_wait_for_memory_and_all_are_finished_in_the_end() -> None:
    async def scenario() -> None:
        taken = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(len(frame))
            return None

        async with serving(note, queued_max_request_bytes=str(BUDGET)) as served:
            await begin_large(served, 4)
            await until(lambda: served.server.budget.is_exceeded)
            waiting = [c for c in served.server.connections if is_waiting(served, c)]
            assert waiting
            small = await served.connect_admitted()
            small.send(framed(REQUEST))
            await until(lambda: taken == [len(REQUEST)])
            await finish(served, taken)
            assert taken.count(3_000_000) == 4
            assert served.server.budget.used_bytes == 0

    run(scenario())


def is_waiting(served: Serving, connection: Connection) -> bool:
    return served.server.budget.is_waiting(connection)


async def finish(served: Serving, taken: list[int]) -> None:
    left = dict.fromkeys(served.clients[:4], 2_300_000)
    while taken.count(3_000_000) < 4:
        for client, size in left.items():
            if size:
                try:
                    left[client] -= client.socket.send(bytes(min(size, 65536)))
                except BlockingIOError:
                    continue
        await turns(1)


def test_memory_comes_back_when_those_who_hold_it_leave() -> None:
    async def scenario() -> None:
        async with serving(silent, queued_max_request_bytes=str(BUDGET)) as served:
            await begin_large(served, 3)
            await until(lambda: served.server.budget.is_exceeded)
            for client in served.clients:
                client.socket.close()
            served.clock.shift_s = 31  # those that wait for memory are not read: swept instead
            served.server.sweep()
            await until(lambda: not served.server.connections)
            assert served.server.budget.used_bytes == 0
            await begin_large(served, 1)
            await until(lambda: served.server.budget.used_bytes > 0)

    run(scenario())


def test_who_piles_up_requests_while_memory_is_short_is_closed() -> None:
    async def scenario() -> None:
        def promise(frame: memoryview, connection: Connection) -> Response:
            return Pending(is_barrier=True) if bytes(frame) == REQUEST else None

        async with serving(promise, queued_max_request_bytes=str(BUDGET)) as served:
            await begin_large(served, 3)
            await until(lambda: served.server.budget.is_exceeded)
            piling = await served.connect_admitted()
            piling.send(framed(REQUEST) * 100)
            assert await piling.is_closed()

    run(scenario())


def test_a_violator_is_logged_once_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("ottla")
    before, logger.propagate = logger.propagate, True

    async def scenario() -> None:
        def refuse(frame: memoryview, connection: Connection) -> Response:
            raise ProtocolViolation("nonsense")

        async with serving(refuse) as served:
            for _ in range(5):
                client = await served.connect_admitted()
                client.send(framed(REQUEST))
                assert await client.is_closed()
            assert served.server.violation_count == 5

    try:
        run(scenario())
    finally:
        logger.propagate = before
    assert [record.message for record in caplog.records].count("connection closed") == 1


def test_answers_under_way_leave_before_the_server_closes() -> None:
    async def scenario() -> None:
        promises = list[Pending]()
        async with serving(promising(promises)) as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST))
            await until(lambda: bool(promises))
            served.server.loop.call_later(0.05, promises[0].complete, framed(b"answer"))
            await served.server.close()
            assert await client.receive_frame() == b"answer"
            assert await client.is_closed()

    run(scenario())


def test_a_closing_server_takes_no_request_and_resets_nobody() -> None:
    async def scenario() -> None:
        promises = list[Pending]()
        async with serving(promising(promises)) as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST))
            await until(lambda: bool(promises))
            closing = asyncio.create_task(served.server.close())
            await until(lambda: served.server.is_closing)
            client.send(framed(REQUEST) * 100)
            promises[0].complete(framed(b"answer"))
            # A reset would drop the answer that lies unread here.
            await until(lambda: ended(client))
            assert await client.receive_frame() == b"answer"
            assert await client.is_closed()
            client.socket.close()
            await closing
        assert len(promises) == 1

    run(scenario())


def test_a_closing_server_drops_the_requests_behind_a_long_poll() -> None:
    async def scenario() -> None:
        polls = list[Pending]()

        def poll(frame: memoryview, connection: Connection) -> Response:
            polls.append(Pending(is_barrier=True))
            return polls[-1]

        async with serving(poll) as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST) * 3)
            await until(lambda: bool(polls))
            served.server.stop_taking()
            polls[0].complete(framed(b"answer"))
            closing = asyncio.create_task(served.server.close())
            assert await client.receive_frame() == b"answer"
            assert await client.is_closed()
            client.socket.close()
            await until(lambda: not served.server.connections)  # it reads on, and so notices
            await closing
        assert len(polls) == 1

    run(scenario())


def ended(client: Client) -> bool:
    """Whether the other side has sent all it will send, which may wait here to be read."""
    closed_wait = 8  # as Linux numbers the states of a connection
    return client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == closed_wait


def test_nobody_is_served_before_the_server_listens() -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            await served.server.close()
            endpoint = await served.server.bind(Endpoint("127.0.0.1", 0))
            address = (endpoint.host, endpoint.port)
            with socket.socket() as client:
                client.setblocking(False)
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.get_running_loop().sock_connect(client, address)

    run(scenario())


def test_large_buffers_are_used_again_and_small_ones_are_not_kept() -> None:
    pool = BufferPool()
    large = pool.take(100_000)
    assert len(large) == 131_072
    pool.give_back(large)
    assert pool.take(70_000) is large
    small = pool.take(100)
    pool.give_back(small)
    assert pool.take(100) is not small
