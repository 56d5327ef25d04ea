"""Bytes in, frames to the dispatcher, answers out in order; on real sockets and a real loop."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from fakes.loopback import Client, Serving, framed, run, serving, turns, until
from ottla.broker.connection import Connection
from ottla.broker.pending import Pending, Response
from ottla.errors import ProtocolViolation

REQUEST = b"request!"  # the shortest frame there is
LARGE_BYTES = 300_000  # of a request that has a turn of the loop for itself


def echo(frame: memoryview, connection: Connection) -> Response:
    return framed(bytes(frame))


class Waiting:
    """A dispatcher that promises an answer to each request and keeps the promises."""

    def __init__(self, *, is_barrier: Callable[[bytes], bool]) -> None:
        self._is_barrier = is_barrier
        self.taken: list[bytes] = []
        self.promises: list[Pending] = []
        self.abandoned: list[bytes] = []

    def __call__(self, frame: memoryview, connection: Connection) -> Response:
        request = bytes(frame)
        self.taken.append(request)
        pending = Pending(is_barrier=self._is_barrier(request))
        pending.on_abandon(lambda: self.abandoned.append(request))
        self.promises.append(pending)
        return pending


def test_a_frame_may_be_split_at_any_byte() -> None:
    async def scenario() -> None:
        wire = framed(b"first request") + framed(b"second request")
        async with serving(echo) as served:
            client = await served.connect_admitted()
            for cut in range(1, len(wire)):
                client.send(wire[:cut])
                await turns(3)
                client.send(wire[cut:])
                assert await client.receive(len(wire)) == wire

    run(scenario())


def test_frames_of_all_sizes_on_many_connections_do_not_mix() -> None:
    """All connections read into one buffer: nobody may see what it held for another."""

    async def scenario() -> None:
        chance = Random(1)
        async with serving(echo) as served:

            async def talk(seed: int) -> None:
                client = await served.connect()
                for number in range(8):
                    size = chance.choice((8, 100, 5000, 70_000, 300_000, 1_200_000))
                    payload = Random(seed * 100 + number).randbytes(size)
                    sending = asyncio.create_task(client.send_all(framed(payload)))
                    assert await client.receive_frame() == payload
                    await sending

            await asyncio.gather(*(talk(seed) for seed in range(6)))
            assert served.server.budget.used_bytes == 0
            assert served.defects == []

    run(scenario())


def test_answers_keep_the_order_of_their_requests() -> None:
    async def scenario() -> None:
        waiting = Waiting(is_barrier=lambda _: False)
        async with serving(waiting) as served:
            client = await served.connect_admitted()
            requests = [f"request {number}".encode() for number in range(5)]
            client.send(b"".join(map(framed, requests)))
            await until(lambda: len(waiting.promises) == 5)
            for number in (3, 1, 4, 0, 2):
                waiting.promises[number].complete(framed(requests[number]))
                await turns(3)
            assert [await client.receive_frame() for _ in range(5)] == requests

    run(scenario())


def test_behind_a_barrier_nothing_is_begun() -> None:
    async def scenario() -> None:
        waiting = Waiting(is_barrier=lambda request: request.startswith(b"barrier"))
        async with serving(waiting) as served:
            client = await served.connect_admitted()
            client.send(framed(b"before it") + framed(b"barrier 1") + framed(b"behind it"))
            await until(lambda: len(waiting.taken) == 2)
            await turns()
            assert waiting.taken == [b"before it", b"barrier 1"]
            assert served.server.budget.used_bytes == len(framed(b"behind it"))
            waiting.promises[1].complete(framed(b"barrier 1"))
            await until(lambda: len(waiting.taken) == 3)
            waiting.promises[0].complete(framed(b"before it"))
            waiting.promises[2].complete(framed(b"behind it"))
            answers = [await client.receive_frame() for _ in range(3)]
            assert answers == [b"before it", b"barrier 1", b"behind it"]
            assert served.server.budget.used_bytes == 0

    run(scenario())


def test_too_many_open_promises_stop_the_reading_and_kept_ones_let_it_go_on() -> None:
    async def scenario() -> None:
        waiting = Waiting(is_barrier=lambda _: False)

        def has_more_than(count: int) -> Callable[[], bool]:
            return lambda: len(waiting.promises) > count

        async with serving(waiting) as served:
            client = await served.connect_admitted()
            client.send(framed(REQUEST) * 1000)
            await until(lambda: len(waiting.taken) >= 256)
            await turns()
            assert len(waiting.taken) == 256
            for kept in range(1000):
                await until(has_more_than(kept))
                waiting.promises[kept].complete(framed(b"kept %d" % kept))
            for number in range(1000):
                assert await client.receive_frame() == b"kept %d" % number

    run(scenario())


def test_who_does_not_read_is_not_read_either() -> None:
    async def scenario() -> None:
        taken = []

        def answer(frame: memoryview, connection: Connection) -> Response:
            taken.append(bytes(frame))
            return framed(bytes(frame) + bytes(4000))

        requests = [b"request %6d" % number for number in range(12_000)]
        async with serving(answer) as served:
            client = await served.connect_admitted()
            sending = asyncio.create_task(client.send_all(b"".join(map(framed, requests))))
            await turns(2000)
            count = len(taken)
            await turns(2000)
            assert len(taken) == count < 6000, "it goes on without a listener"
            for request in requests:
                assert (await client.receive_frame())[: len(request)] == request
            await sending

    run(scenario())


def test_two_who_ask_at_full_speed_share_the_loop() -> None:
    async def scenario() -> None:
        taken: list[Connection] = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(connection)
            return None

        async with serving(note) as served:
            first, second = await served.connect_admitted(), await served.connect_admitted()
            flood = framed(REQUEST) * 5000
            first.send(flood)
            second.send(flood)
            await until(lambda: len(taken) == 10_000)
            assert len(set(taken[:2000])) == 2

    run(scenario())


def test_bulk_in_larger_frames_shares_the_loop_too() -> None:
    async def scenario() -> None:
        taken: list[Connection] = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(connection)
            return None

        async with serving(note) as served:
            clients = [await served.connect_admitted() for _ in range(2)]
            bulk = framed(bytes(50_000)) * 100
            await asyncio.gather(*(client.send_all(bulk) for client in clients))
            await until(lambda: len(taken) == 200)
            assert len(set(taken[:40])) == 2

    run(scenario())


async def connect_bulk(served: Serving, size: int = LARGE_BYTES) -> tuple[Client, bytes]:
    """A client of whose large request all has arrived but the bytes that are returned."""
    client = await served.connect_admitted()
    wire = framed(bytes(size))
    before_bytes = served.server.budget.used_bytes
    await client.send_all(wire[:-10])
    await until(lambda: served.server.budget.used_bytes >= before_bytes + size)
    await turns(20)
    return client, wire[-10:]


def test_whoever_is_read_with_a_large_request_is_answered_before_it() -> None:
    async def scenario() -> None:
        answered: list[bytes] = []

        def note(frame: memoryview, connection: Connection) -> Response:
            if len(frame) == LARGE_BYTES:
                with suppress(BlockingIOError):
                    answered.append(small.socket.recv(100))
                return None
            return framed(bytes(frame))

        async with serving(note) as served:
            bulk, rest = await connect_bulk(served)
            small = await served.connect_admitted()
            bulk.send(rest)
            small.send(framed(REQUEST))
            await until(lambda: not served.server.budget.used_bytes)
            assert answered == [framed(REQUEST)]

    run(scenario())


def test_between_two_large_requests_others_get_their_turn() -> None:
    async def scenario() -> None:
        taken: list[int] = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(len(frame))
            if len(frame) == LARGE_BYTES:
                small.send(framed(REQUEST))
            return None

        async with serving(note) as served:
            bulk = [await connect_bulk(served) for _ in range(3)]
            small = await served.connect_admitted()
            for client, rest in bulk:
                client.send(rest)
            await until(lambda: len(taken) == 6)
            assert taken == [LARGE_BYTES, len(REQUEST)] * 3

    run(scenario())


def test_a_connection_that_ends_before_its_large_request_has_its_turn_is_forgotten() -> None:
    async def scenario() -> None:
        taken: list[Connection] = []

        def note(frame: memoryview, connection: Connection) -> Response:
            taken.append(connection)
            for other in [other for other in served.server.connections if other is not connection]:
                other.close()
            return None

        async with serving(note) as served:
            bulk = [await connect_bulk(served) for _ in range(2)]
            for client, rest in bulk:
                client.send(rest)
            await until(lambda: bool(taken))
            await turns(20)
            assert len(taken) == 1
            assert served.server.budget.used_bytes == 0
            assert served.defects == []

    run(scenario())


def test_a_large_request_behind_a_barrier_waits_for_it_and_not_only_for_its_turn() -> None:
    async def scenario() -> None:
        dispatch = Waiting(is_barrier=lambda request: request == REQUEST)
        async with serving(dispatch) as served:
            client = await served.connect_admitted()
            await client.send_all(framed(REQUEST) + framed(bytes(LARGE_BYTES)))
            await until(lambda: served.server.budget.used_bytes >= LARGE_BYTES)
            await turns(20)
            assert dispatch.taken == [REQUEST]
            dispatch.promises[0].complete(framed(b"the answer"))
            await until(lambda: len(dispatch.taken) == 2)
            dispatch.promises[1].complete(framed(b"and the next"))
            assert await client.receive_frame() == b"the answer"
            assert await client.receive_frame() == b"and the next"

    run(scenario())


def test_whoever_leaves_abandons_what_it_waited_for() -> None:
    async def scenario() -> None:
        waiting = Waiting(is_barrier=lambda _: True)
        async with serving(waiting) as served:
            client = await served.connect_admitted()
            client.send(framed(b"long poll"))
            await until(lambda: bool(waiting.promises))
            client.socket.close()
            await until(lambda: not served.server.connections)
            assert waiting.abandoned == [b"long poll"]
            waiting.promises[0].complete(framed(b"too late"))
            await turns()
            assert served.defects == []

    run(scenario())


@pytest.mark.parametrize("problem", [ProtocolViolation("nonsense"), ValueError("our mistake")])
def test_a_request_that_goes_wrong_ends_its_connection_and_no_other(problem: Exception) -> None:
    async def scenario() -> None:
        def dispatch(frame: memoryview, connection: Connection) -> Response:
            if bytes(frame) == b"go wrong":
                raise problem
            return framed(bytes(frame))

        async with serving(dispatch) as served:
            wrong, fine = await served.connect_admitted(), await served.connect_admitted()
            wrong.send(framed(REQUEST) + framed(b"go wrong") + framed(REQUEST))
            assert await wrong.is_closed()
            fine.send(framed(REQUEST))
            assert await fine.receive_frame() == REQUEST
            assert served.defects == ([] if isinstance(problem, ProtocolViolation) else [problem])
            assert served.server.violation_count == int(isinstance(problem, ProtocolViolation))

    run(scenario())


@pytest.mark.parametrize("size", [-1, 0, 7, 1025, 2**31 - 1])
def test_a_length_out_of_bounds_closes_the_connection(size: int) -> None:
    async def scenario() -> None:
        async with serving(echo, socket_request_max_bytes="1024") as served:
            for step in (1, 4):
                client = await served.connect_admitted()
                head = size.to_bytes(4, "big", signed=True)
                for start in range(0, 4, step):
                    client.send(head[start : start + step])
                    await turns(3)
                assert await client.is_closed()

    run(scenario())


def test_a_frame_gets_memory_as_it_arrives_and_not_as_it_announces() -> None:
    async def scenario() -> None:
        async with serving(echo) as served:
            client = await served.connect_admitted()
            client.send((50 << 20).to_bytes(4, "big") + b"only the beginning")
            await until(lambda: served.server.budget.used_bytes > 0)
            assert served.server.budget.used_bytes <= 4096

    run(scenario())


class MemoryTransport(asyncio.Transport):
    """A way out without a socket, as a simulated network or encryption has it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.unsent_bytes = 0
        self.is_reading_now = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise AssertionError("nobody closes this one")


def feed(connection: Connection, data: bytes) -> None:
    buffer = connection.get_buffer(-1)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


def test_without_a_socket_answers_go_through_the_transport_with_the_same_back_pressure() -> None:
    async def scenario() -> None:
        large = bytes(200_000)

        def dispatch(frame: memoryview, connection: Connection) -> Response:
            return framed(bytes(frame) + large)

        async with serving(dispatch) as served:
            transport, connection = MemoryTransport(), served.server.new_connection()
            connection.connection_made(transport)
            feed(connection, framed(REQUEST) * 5)
            await turns(2)
            answer = framed(REQUEST + large)
            assert bytes(transport.written) == answer * 2, "the third waits for a reader"
            assert not transport.is_reading_now
            while len(transport.written) < 5 * len(answer):
                transport.unsent_bytes = 0
                connection.resume_writing()
                await turns(2)
            assert bytes(transport.written) == answer * 5
            assert transport.is_reading_now
            transport.unsent_bytes = 0
            assert connection.is_idle
            connection.connection_lost(None)

    run(scenario())
