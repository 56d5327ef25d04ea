"""A network between hosts: TCP connections as pipes of bytes with delays, cuts and partitions.

Bytes of one connection and direction arrive in order, each chunk after a delay of its own. A
blocked direction holds them back, as TCP does while it repeats itself, and delivers when it is
free again. A reset ends a connection at any byte of what is under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from sim.loop import Process, SimLoop, current_process

_HIGH_WATER: Final = 64 * 1024
_RECEIVE_BYTES: Final = 256 * 1024  # of a receiver that does not read; then the sender's wait
_FIRST_PORT: Final = 9092
_RETRANSMIT_S: Final = 0.1


class _Address(NamedTuple):
    host: str
    port: int


class Network:
    """Owner of listeners, connections and blocked directions."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.delay_s = (0.0001, 0.002)
        self._listeners: dict[_Address, Listener] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._pipes: dict[SimTransport, None] = {}
        self._ports: dict[str, int] = {}
        self._last_port = 40_000
        self._down: dict[str, None] = {}  # hosts without power: they do not even refuse

    # Faults

    def block(self, source: str, target: str) -> None:
        """Let nothing pass from one host to another."""
        self._blocked[source, target] = None

    def unblock_all(self) -> None:
        self._blocked.clear()
        for pipe in list(self._pipes):
            pipe.schedule()

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def reset_some(self, share: float) -> int:
        """Cut connections at any byte; returns how many."""
        chosen = [pipe for pipe in self._pipes if self.rng.random() < share]
        for pipe in chosen:
            pipe.reset()
        return len(chosen)

    def take_down(self, host: str) -> None:
        """The power of a host is cut: what is sent to it is lost, without an error."""
        self._down[host] = None

    def bring_up(self, host: str) -> None:
        self._down.pop(host, None)

    def is_down(self, host: str) -> bool:
        return host in self._down

    def drop_process(self, process: Process) -> None:
        """End the connections of a killed process; peers learn of it if its host has power."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for pipe in [pipe for pipe in self._pipes if pipe.process is process]:
            pipe.die(is_silent=self.is_down(process.host))

    # Used by the loop

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> "Listener":
        process = current_process()
        assert process is not None, "a listener belongs to a process"
        if port == 0:
            port = self._ports.get(host, _FIRST_PORT)
            self._ports[host] = port + 1
        address = _Address(host, port)
        if address in self._listeners:
            raise OSError(98, "address already in use")
        listener = self._listeners[address] = Listener(self, address, process, factory)
        return listener

    def forget_listener(self, listener: "Listener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    async def connect(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple["SimTransport", Any]:
        process = current_process()
        assert process is not None, "a connection belongs to a process"
        await self._pass(process.host, host)
        listener = self._listeners.get(_Address(host, port))
        await self._pass(host, process.host)
        if listener is None or not listener.is_serving or not listener.process.is_alive:
            raise ConnectionRefusedError(111, "connection refused")
        near = SimTransport(self, process, listener.address)
        far = SimTransport(self, listener.process, _Address(process.host, self._client_port()))
        near.peer, far.peer = far, near
        self._pipes[near] = self._pipes[far] = None
        far.open(listener.factory())
        protocol = near.open(factory())
        return near, protocol

    def _client_port(self) -> int:
        """A client's port: no two connections of a simulation share one."""
        self._last_port += 1
        return self._last_port

    async def _pass(self, source: str, target: str) -> None:
        """Wait as long as a packet takes; while the direction is blocked or a host down, longer."""
        await asyncio.sleep(self.draw_delay_s())
        hosts = (source, target)
        while self.is_blocked(*hosts) or any(map(self.is_down, hosts)):  # noqa: ASYNC110
            await asyncio.sleep(_RETRANSMIT_S)

    def draw_delay_s(self) -> float:
        return self.rng.uniform(*self.delay_s)

    def forget_pipe(self, pipe: "SimTransport") -> None:
        self._pipes.pop(pipe, None)


class Listener:
    """What `create_server` returns: an address that a process accepts connections at."""

    def __init__(
        self, network: Network, address: _Address, process: Process, factory: Callable[[], Any]
    ) -> None:
        self.address = address
        self.process = process
        self.factory = factory
        self.is_serving = False
        self._network = network

    @property
    def sockets(self) -> list["Listener"]:
        return [self]

    def getsockname(self) -> _Address:
        return self.address

    async def start_serving(self) -> None:
        self.is_serving = True

    def close(self) -> None:
        self.is_serving = False
        self._network.forget_listener(self)

    async def wait_closed(self) -> None:
        return


class SimTransport(asyncio.Transport):
    """One end of a connection, with the bytes that are on their way to it."""

    def __init__(self, network: Network, process: Process, remote: _Address) -> None:
        super().__init__({"peername": remote})
        self.process = process
        self.peer: SimTransport
        self._network = network
        self._remote = remote
        self._protocol: Any = None
        self._arriving: deque[tuple[float, bytes | None]] = deque()  # None: the peer has finished
        self._arrived_bytes = 0
        self._last_s = 0.0
        self._is_reading = True
        self._is_closed = False
        self._is_writing_paused = False
        self._is_pumping = False

    def open(self, protocol: Any) -> Any:
        self._protocol = protocol
        self._call(protocol.connection_made, self)
        return protocol

    # The sending side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closed or not data:
            return
        if not self.peer.process.is_alive and not self._network.is_down(self.peer.process.host):
            self.arrive(None)  # the host knows no such connection
            return
        self.peer.arrive(bytes(data))
        if not self._is_writing_paused and self.get_write_buffer_size() > _HIGH_WATER:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Bytes that the system could not take any more."""
        return max(self.peer.unread_bytes - _RECEIVE_BYTES, 0)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closed:
            self.peer.arrive(None)

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Close: the peer learns of it behind what was sent before."""
        if self._is_closed:
            return
        self._close(None)
        self.peer.arrive(None)

    # The receiving side

    @property
    def unread_bytes(self) -> int:
        return self._arrived_bytes

    def arrive(self, data: bytes | None) -> None:
        """Bytes have been sent to this end, or None at the end of all."""
        if self._is_closed or not self.process.is_alive:
            return
        now_s = self._network.loop.time()
        self._last_s = max(self._last_s, now_s + self._network.draw_delay_s())
        self._arriving.append((self._last_s, data))
        self._arrived_bytes += 0 if data is None else len(data)
        self.schedule()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.schedule()

    def is_reading(self) -> bool:
        return self._is_reading

    def schedule(self) -> None:
        if self._is_pumping or not self._arriving:
            return
        self._is_pumping = True
        at_s = max(self._arriving[0][0], self._network.loop.time())
        self._network.loop.call_at(at_s, self._pump, context=self.process.context)

    def _pump(self) -> None:
        self._is_pumping = False
        self.pump()

    def pump(self) -> None:
        """Deliver what has arrived by now, as far as this end reads."""
        now_s = self._network.loop.time()
        while self._arriving and self._is_reading and not self._is_closed:
            if self._network.is_blocked(self.peer.process.host, self.process.host):
                return
            at_s, data = self._arriving[0]
            if at_s > now_s:
                break
            self._arriving.popleft()
            if data is None:
                self._close(None)
                return
            self._receive(data)
        if self._arriving and self._is_reading:
            self.schedule()

    def _receive(self, data: bytes) -> None:
        buffer = memoryview(self._protocol.get_buffer(-1))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        self._arrived_bytes -= size
        if size < len(data):
            self._arriving.appendleft((0.0, data[size:]))
        self._call(self._protocol.buffer_updated, size)
        self.peer.note_read()

    def note_read(self) -> None:
        if self._is_writing_paused and self.get_write_buffer_size() <= _HIGH_WATER // 4:
            self._is_writing_paused = False
            self._network.loop.call_soon(
                self._protocol.resume_writing, context=self.process.context
            )

    # Faults

    def reset(self) -> None:
        """End the connection; of the bytes on their way some arrive, up to any byte."""
        for end in (self, self.peer):
            end.cut()

    def cut(self) -> None:
        if self._is_closed:
            return
        rng, kept = self._network.rng, 0
        if self._arrived_bytes:
            kept = rng.randrange(self._arrived_bytes + 1)
        cut: deque[tuple[float, bytes | None]] = deque()
        for at_s, data in self._arriving:
            if data is not None and kept:
                cut.append((at_s, data[:kept]))
                kept -= min(kept, len(data))
        cut.append((self._last_s, None))
        self._arriving = cut
        self._arrived_bytes = sum(len(data) for _, data in cut if data is not None)
        self.schedule()

    def die(self, *, is_silent: bool) -> None:
        """The process of this end is gone."""
        self._is_closed = True
        self._network.forget_pipe(self)
        if not is_silent:
            self.peer.arrive(None)

    def _close(self, error: Exception | None) -> None:
        self._is_closed = True
        self._arriving.clear()
        self._network.forget_pipe(self)
        self._network.loop.call_soon(
            self._protocol.connection_lost, error, context=self.process.context
        )

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        self.process.context.copy().run(callback, *args)


class SimNetworkLoop(SimLoop):
    """A loop whose servers and connections are those of a simulated network."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.network = Network(self, rng)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        listener = self.network.listen(protocol_factory, host, port)
        if more.get("start_serving", True):
            await listener.start_serving()
        return listener

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)
