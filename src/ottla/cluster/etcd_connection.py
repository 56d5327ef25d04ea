"""An HTTP connection to an etcd server: h11 for the protocol, asyncio streams for the bytes."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import h11

from ottla.cluster.etcd_messages import EndpointFailed
from ottla.cluster.store import StoreUnavailable
from ottla.model import Endpoint

RESPONSE_BYTES_MAX: Final = 32 << 20  # of a whole response, or of one message of a stream

_READ_BYTES: Final = 1 << 16
# A peer that vanished without a word is noticed after some 11 s: a watch has no other deadline.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

Headers = Sequence[tuple[str, str]]


class ConnectionClosed(EndpointFailed):
    """A server ended the connection before its response was complete."""


class ResponseTooLarge(StoreUnavailable):
    """A response is larger than `RESPONSE_BYTES_MAX`."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole HTTP response."""

    status: int
    body: bytes


class EtcdConnection:
    """A connection for one request at a time; after a failure it is only good for closing."""

    def __init__(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Use `open`."""
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._lines = bytearray()  # of a stream, from the first byte that was not returned yet

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None) -> "EtcdConnection":
        try:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
        except OSError as problem:
            how = " over TLS" if tls else ""
            text = f"cannot be reached{how}: {str(problem) or type(problem).__name__}"
            raise _failed(endpoint, text) from problem
        sock = writer.get_extra_info("socket")
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)
        return cls(endpoint, reader, writer)

    @property
    def is_idle(self) -> bool:
        """True if another request can be sent: no response is half read, and no end was seen."""
        has_ended = self._reader.at_eof() or self._writer.is_closing()
        return self._http.our_state is h11.IDLE and not has_ended

    async def request(self, method: str, target: str, headers: Headers, body: bytes) -> Response:
        """Send a request and read the whole response."""
        with self._failures_named():
            status = await self._send(method, target, headers, body)
            received = bytearray()
            while (data := await self._body_part()) is not None:
                received += data
                self._check_size(received)
            if self._http.our_state is self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
            return Response(status, bytes(received))

    async def begin_stream(self, target: str, headers: Headers, body: bytes) -> int:
        """Send a request whose response has no end; returns the status."""
        with self._failures_named():
            return await self._send("POST", target, headers, body)

    async def next_line(self) -> bytes:
        """The next line of a stream, for as long as it takes."""
        with self._failures_named():
            searched = 0
            while (end := self._lines.find(b"\n", searched)) < 0:
                searched = len(self._lines)
                data = await self._body_part()
                if data is None:
                    raise _failed(self.endpoint, "ended the stream")
                self._lines += data
                self._check_size(self._lines)
            line = bytes(self._lines[:end])
            del self._lines[: end + 1]
            return line

    def abort(self) -> None:
        """Close at once, whatever is under way; a waiting `next_line` fails."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, method: str, target: str, headers: Headers, body: bytes) -> int:
        common = (("Host", str(self.endpoint)), ("Content-Length", str(len(body))))
        head = h11.Request(method=method, target=target, headers=[*common, *headers])
        parts = (head, h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        await self._writer.drain()
        while not isinstance(event := await self._event(), h11.Response):
            pass  # 1xx: the response follows
        return event.status_code

    async def _body_part(self) -> bytes | bytearray | None:
        """More of the response's body; None at its end."""
        event = await self._event()
        return event.data if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_READ_BYTES))
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise self._closed()
        return event

    def _check_size(self, received: bytearray) -> None:
        if len(received) > RESPONSE_BYTES_MAX:
            text = f"sent more than {RESPONSE_BYTES_MAX} bytes in one response"
            raise ResponseTooLarge(f"etcd at {self.endpoint} {text}")

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except h11.RemoteProtocolError as problem:
            if self._reader.at_eof():
                raise self._closed() from problem
            text = f"sent something that is not HTTP: {problem}"
            raise _failed(self.endpoint, text) from problem
        except OSError as problem:
            text = f"broke the connection: {str(problem) or type(problem).__name__}"
            raise _failed(self.endpoint, text) from problem

    def _closed(self) -> "ConnectionClosed":
        return ConnectionClosed(f"etcd at {self.endpoint} closed the connection in a call")


def _failed(endpoint: Endpoint, text: str) -> EndpointFailed:
    return EndpointFailed(f"etcd at {endpoint} {text}")
