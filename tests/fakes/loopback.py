"""A real server on a loopback socket, with a dispatcher and a clock that the test holds."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

from ottla.broker.connection import Connection
from ottla.broker.pending import Response
from ottla.broker.server import Server
from ottla.config import BrokerConfig
from ottla.model import Endpoint
from ottla.settings import Settings

PATIENCE_S = 10
Dispatch = Callable[[memoryview, Connection], Response]


def run(scenario: Awaitable[None], patience_s: float = PATIENCE_S) -> None:
    """Run a scenario on the loop that the broker uses."""

    async def bounded() -> None:
        async with asyncio.timeout(patience_s):
            await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def framed(payload: bytes) -> bytes:
    """A payload behind its length."""
    return len(payload).to_bytes(4, "big") + payload


class ShiftedLoop:
    """A running loop whose clock can be put forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.shift_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.shift_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Client:
    """The other end of a connection: blocking to send, awaiting to receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        """Into the kernel's buffer, without giving the loop a turn."""
        assert self.socket.send(data) == len(data)

    async def send_all(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self, size: int) -> bytes:
        """So many bytes, or all there were before the connection ended."""
        loop = asyncio.get_running_loop()
        while len(self._received) < size:
            try:
                more = await loop.sock_recv(self.socket, 1 << 16)
            except ConnectionResetError:
                break
            if not more:
                break
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def receive_frame(self) -> bytes:
        head = await self.receive(4)
        return await self.receive(int.from_bytes(head, "big")) if head else b""

    async def is_closed(self) -> bool:
        return await self.receive(1) == b""


@dataclass
class Serving:
    """A running server, what its clock says, and what went wrong in it."""

    server: Server
    clock: ShiftedLoop
    address: tuple[str, int]
    defects: list[BaseException]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        client = Client(sock)
        self.clients.append(client)
        return client

    async def connect_admitted(self) -> Client:
        """A connection that the server has taken."""
        count = self.server.accepted_count
        client = await self.connect()
        await until(lambda: self.server.accepted_count > count)
        return client


class _Dispatcher:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def take(self, frame: memoryview, connection: Connection) -> Response:
        return self._dispatch(frame, connection)


@asynccontextmanager
async def serving(dispatch: Dispatch, **settings: str) -> AsyncIterator[Serving]:
    """Settings are given by their dotted names with underscores."""
    raw = {name.replace("_", "."): value for name, value in settings.items()}
    clock = ShiftedLoop(asyncio.get_running_loop())
    defects: list[BaseException] = []
    server = Server(
        cast("asyncio.AbstractEventLoop", clock),
        Settings(BrokerConfig.parse(raw)),
        _Dispatcher(dispatch),
        defects.append,
        room=10_000,
    )
    endpoint = await server.bind(Endpoint("127.0.0.1", 0))
    await server.listen(endpoint)
    served = Serving(server, clock, (endpoint.host, endpoint.port), defects)
    try:
        yield served
    finally:
        for client in served.clients:
            client.socket.close()
        await until(lambda: not server.connections)
        await server.close()
    assert server.budget.used_bytes == 0, "whoever is closed holds no memory"


async def until(is_true: Callable[[], bool]) -> None:
    """Give the loop turns until something has happened in it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while not is_true():
        assert loop.time() < deadline_s, "it did not happen"
        await asyncio.sleep(0)


async def turns(count: int = 200) -> None:
    """Enough turns for everything that is going to happen by itself."""
    for _ in range(count):
        await asyncio.sleep(0)
