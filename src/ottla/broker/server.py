"""The listening side: which connections exist, and when they are closed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ottla.broker.connection import (
    Connection,
    SharedByConnections,
    TakesRequests,
    receive_buffer,
)
from ottla.broker.fairness import Turns
from ottla.broker.receive_budget import ReceiveBudget
from ottla.errors import UsageRefused
from ottla.model import Endpoint
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")

_BACKLOG: Final = 1024
_DRAIN_S: Final = 5.0
_GOODBYE_S: Final = 0.25  # for clients to notice that the broker hung up, and do so too
_LOOK_S_MIN: Final = 0.0005
_LOOK_S_MAX: Final = 0.01
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


class Server:
    """Owner of every connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        dispatcher: TakesRequests,
        end_broker: Callable[[BaseException], None],
        *,
        room: int,
    ) -> None:
        """`room` is how many connections there are descriptors for."""
        self.loop = loop
        self.settings = settings
        self.budget = ReceiveBudget(settings)
        self.connections: dict[Connection, None] = {}
        self.accepted_count = 0
        self.refused_count = 0
        self.violation_count = 0
        self.is_closing = False
        self._end_broker = end_broker
        self._shared = SharedByConnections(
            self, loop, settings, dispatcher, self.budget, Turns(loop), receive_buffer()
        )
        self._room = room
        self._per_ip: Counter[str] = Counter()
        self._violators: set[str] = set()
        self._listener: asyncio.Server | None = None

    async def bind(self, endpoint: Endpoint) -> Endpoint:
        """Take the address; returns it with the port that it became if 0 was asked for.

        Clients are refused until `listen`: a broker that served them before the cluster knows it
        would tell them that there are no brokers, and then they have none to ask again.
        """
        with _taking(endpoint):
            self._listener = await self.loop.create_server(
                self.new_connection,
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
        """Accept no client, take no request, let pending responses leave; close."""
        self.stop_taking()
        await self._look_until(_DRAIN_S, self._finish_all)
        await self._look_until(_GOODBYE_S, lambda: not self.connections)
        for connection in list(self.connections):
            connection.close()
        if self._listener is not None:
            await self._listener.wait_closed()

    def stop_taking(self) -> None:
        """Accept no client and take no request from now on."""
        self.is_closing = True
        if self._listener is not None:
            self._listener.close()

    async def _look_until(self, timeout_s: float, is_true: Callable[[], bool]) -> None:
        deadline_s = self.loop.time() + timeout_s
        rest_s = _LOOK_S_MIN
        while not is_true() and self.loop.time() < deadline_s:
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, _LOOK_S_MAX)

    def _finish_all(self) -> bool:
        """True if every client has all responses, and knows that it has."""
        finished = [connection.finish() for connection in list(self.connections)]
        return all(finished)

    # Connections come and go

    def new_connection(self) -> Connection:
        """The protocol of a connection that is about to be made."""
        return Connection(self._shared)

    def admit(self, connection: Connection) -> bool:
        """True if the broker has room for one more connection, from this peer."""
        reached = self._limit_reached(connection.peer)
        if reached is not None:
            self.refused_count += 1
            if connection.peer not in self._violators:
                self._note_violator(connection.peer)
                log.warning(
                    "connection refused, too many are open",
                    extra={"peer": connection.peer, "limit": reached},
                )
            return False
        self.accepted_count += 1
        self._per_ip[connection.peer] += 1
        self.connections[connection] = None
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
        del self.connections[connection]
        self._per_ip[connection.peer] -= 1
        if not self._per_ip[connection.peer]:
            del self._per_ip[connection.peer]
        self.budget.forget(connection)

    def sweep(self) -> None:
        """Close connections that were silent too long, or take too long to finish a request."""
        now_s = self.loop.time()
        idle_since_s = now_s - self.settings.broker.idle_ms_max / 1000
        begun_since_s = now_s - self.settings.broker.request_ms_max / 1000
        for connection in list(self.connections):
            if connection.begun_s and connection.begun_s < begun_since_s:
                self.note_violation(connection.peer, "a request took too long to arrive")
                connection.close()
            elif connection.active_s < idle_since_s:
                if connection.is_owed:
                    connection.active_s = now_s  # its silence counts from its response on
                else:
                    connection.close()
            elif connection.has_left:
                connection.close()

    def note_violation(self, peer: str, text: str) -> None:
        """Count bytes that no client sends; logged once per peer."""
        self.violation_count += 1
        if peer not in self._violators:
            self._note_violator(peer)
            log.warning("connection closed", extra={"peer": peer, "reason": text})

    def end_broker(self, defect: BaseException) -> None:
        self._end_broker(defect)

    def _note_violator(self, peer: str) -> None:
        if len(self._violators) >= _VIOLATORS_MAX:
            self._violators.clear()
        self._violators.add(peer)
