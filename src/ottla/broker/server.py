"""The listening side: which connections exist, what they may hold, and when they must go."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ottla.broker.connection import Connection
from ottla.broker.pending import Response
from ottla.errors import UsageRefused
from ottla.model import Endpoint
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")

_SHARED_BUFFER_BYTES: Final = 256 * 1024
_BACKLOG: Final = 1024
_DRAIN_S: Final = 5.0
_GOODBYE_S: Final = 0.25  # for clients to notice that the broker hung up, and do so too
_LOOK_S: Final = 0.01
_VIOLATORS_MAX: Final = 1000


@contextmanager
def _taking(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise UsageRefused(
            f"cannot listen on {endpoint}: {problem.strerror or problem};"
            " choose another address with --listen HOST:PORT"
        ) from problem


class BufferPool:
    """Large receive buffers, used again: a fresh one costs page faults for every megabyte."""

    _KEPT_BYTES_MAX: Final = 32 << 20
    _POOLED_BYTES_MIN: Final = 64 * 1024

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; what it held before is still in it."""
        if size >= self._POOLED_BYTES_MIN:
            size = -(-size // self._POOLED_BYTES_MIN) * self._POOLED_BYTES_MIN
        free = self._free.get(size)
        if free:
            self._kept_bytes -= size
            return free.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        size = len(buffer)
        if size >= self._POOLED_BYTES_MIN and self._kept_bytes + size <= self._KEPT_BYTES_MAX:
            self._kept_bytes += size
            self._free.setdefault(size, []).append(buffer)


class Server:
    """Owns every connection. Dispatch is handed in: it turns a frame into an answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        dispatch: Callable[[memoryview, Connection], Response],
        end_broker: Callable[[BaseException], None],
        *,
        room: int,
    ) -> None:
        """`room` is how many connections there are descriptors for."""
        self.loop = loop
        self.settings = settings
        self.dispatch = dispatch
        self.end_broker = end_broker
        self.shared_view = memoryview(bytearray(_SHARED_BUFFER_BYTES))
        self.buffers = BufferPool()
        self.connections: set[Connection] = set()
        self.accepted_count = 0
        self.refused_count = 0
        self.violation_count = 0
        self.buffered_bytes = 0
        self._room = room
        self._per_ip: Counter[str] = Counter()
        self._violators: set[str] = set()
        self._dirty: dict[Connection, None] = {}
        self._large: deque[Connection] = deque()
        self._waiting: deque[Connection] = deque()
        self._exceeding: Connection | None = None
        self._listener: asyncio.Server | None = None
        self.is_closing = False

    async def bind(self, endpoint: Endpoint) -> Endpoint:
        """Take the address; the answer says which port it became if 0 was asked for.

        Clients are refused until `listen`: whom a broker answers before the cluster knows it,
        it tells that there are no brokers, and then they have nobody to ask again.
        """
        with _taking(endpoint):
            self._listener = await self.loop.create_server(
                lambda: Connection(self),
                endpoint.host,
                endpoint.port,
                backlog=_BACKLOG,
                start_serving=False,
            )
        port = self._listener.sockets[0].getsockname()[1]
        return Endpoint(endpoint.host, int(port))

    async def listen(self, endpoint: Endpoint) -> None:
        """Begin to accept, at the address that was bound."""
        assert self._listener is not None
        with _taking(endpoint):
            await self._listener.start_serving()

    async def close(self) -> None:
        """Accept nobody new, take no request, let answers that are under way leave; close."""
        self.stop_taking()
        await self._look_until(_DRAIN_S, self._finish_all)
        await self._look_until(_GOODBYE_S, lambda: not self.connections)
        for connection in list(self.connections):
            connection.close()
        if self._listener is not None:
            await self._listener.wait_closed()

    def stop_taking(self) -> None:
        """Accept nobody new and take no request from now on."""
        self.is_closing = True
        if self._listener is not None:
            self._listener.close()

    async def _look_until(self, patience_s: float, is_true: Callable[[], bool]) -> None:
        deadline_s = self.loop.time() + patience_s
        while not is_true() and self.loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _finish_all(self) -> bool:
        """Whether everybody who is connected has all answers, and knows that it has."""
        finished = [connection.finish() for connection in list(self.connections)]
        return all(finished)

    # Connections come and go

    def admit(self, connection: Connection) -> bool:
        """Whether the broker has room for one more connection, from this peer."""
        reached = self._limit_reached(connection.peer)
        if reached is not None:
            self.refused_count += 1
            if connection.peer not in self._violators:
                self._note_violator(connection.peer)
                log.warning(
                    "too many connections", extra={"peer": connection.peer, "limit": reached}
                )
            return False
        self.accepted_count += 1
        self._per_ip[connection.peer] += 1
        self.connections.add(connection)
        return True

    def _limit_reached(self, peer: str) -> str | None:
        """The limit that leaves no room for another connection from `peer`."""
        config = self.settings.broker
        if len(self.connections) >= config.connections_max:
            return f"max.connections = {config.connections_max}"
        if self._per_ip[peer] >= config.connections_per_ip_max:
            return f"max.connections.per.ip = {config.connections_per_ip_max}"
        if len(self.connections) >= self._room:
            return f"{self._room} of the process's descriptors (ulimit -n)"
        return None

    def forget(self, connection: Connection) -> None:
        if connection not in self.connections:
            return  # it was never admitted
        self.connections.discard(connection)
        self._per_ip[connection.peer] -= 1
        if not self._per_ip[connection.peer]:
            del self._per_ip[connection.peer]
        if connection in self._waiting:
            self._waiting.remove(connection)
        self.note_finished(connection)

    def sweep(self) -> None:
        """Close whoever was silent too long, or takes too long to finish a request."""
        now_s = self.loop.time()
        idle_since_s = now_s - self.settings.broker.idle_ms_max / 1000
        begun_since_s = now_s - self.settings.broker.request_ms_max / 1000
        for connection in list(self.connections):
            if connection.begun_s and connection.begun_s < begun_since_s:
                self.note_violation(connection.peer, "a request took too long to arrive")
                connection.close()
            elif connection.active_s < idle_since_s:
                if connection.is_owed:
                    connection.active_s = now_s  # its silence counts from its answer on
                else:
                    connection.close()
            elif connection.has_left:
                connection.close()

    def note_violation(self, peer: str, text: str) -> None:
        """Somebody sent what no client sends: said once per peer, counted always."""
        self.violation_count += 1
        if peer not in self._violators:
            self._note_violator(peer)
            log.warning("closed a connection", extra={"peer": peer, "reason": text})

    def _note_violator(self, peer: str) -> None:
        if len(self._violators) >= _VIOLATORS_MAX:
            self._violators.clear()
        self._violators.add(peer)

    # Answers that are ready

    def flush_soon(self, connection: Connection) -> None:
        """Send this connection's answers when all that can be read now has been.

        One client after the other is then woken, instead of each between two reads. With 64
        connections of one request each that is worth a third of the broker's CPU.
        """
        if not self._dirty:
            self.loop.call_soon(self._flush_dirty)
        self._dirty[connection] = None

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            connection.flush_answers()

    # Large requests

    def take_later(self, connection: Connection) -> None:
        """Have this connection take its large request when others have been served, one a turn.

        A megabyte on its way into the page cache holds up everybody. Whoever was read together
        with it is answered first, and however many write in bulk, one request is between two
        looks at the sockets.
        """
        if not self._large:
            self.loop.call_soon(self._let_others)
        self._large.append(connection)

    def _let_others(self) -> None:
        """Behind what this turn still has to do: readers to wake, answers to send."""
        self.loop.call_soon(self._take_large)

    def _take_large(self) -> None:
        self._large.popleft().take_large()
        if self._large:
            self.loop.call_soon(self._let_others)

    # Memory for requests that are arriving or waiting

    @property
    def is_over_budget(self) -> bool:
        return self.buffered_bytes > self.settings.broker.inflight_bytes_max

    def note_buffered(self, delta_bytes: int) -> None:
        self.buffered_bytes += delta_bytes
        while self._waiting and not self.is_over_budget:
            self._waiting.popleft().note_budget()

    def must_wait_for_budget(self, connection: Connection) -> bool:
        """Whether a large request has to wait for memory; `note_budget` ends the wait.

        One request at a time may exceed the budget. If all had to wait, none would be finished,
        and no memory would ever come back.
        """
        if not self.is_over_budget:
            return False
        if self._exceeding is None or self._exceeding is connection:
            self._exceeding = connection
            return False
        self._waiting.append(connection)
        return True

    def note_finished(self, connection: Connection) -> None:
        """This connection's request has arrived, or never will: another one may exceed."""
        if self._exceeding is connection:
            self._exceeding = None
            if self._waiting:
                self._exceeding = self._waiting.popleft()
                self._exceeding.note_budget()

    def is_waiting_for_budget(self, connection: Connection) -> bool:
        return bool(self._waiting) and connection in self._waiting
