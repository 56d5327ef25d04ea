"""Writers of a connection: bytes and file ranges, in order, without blocking."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ottla.broker.pending import Part
from ottla.model import Position
from ottla.storage.log_read import FileRange

SENDFILE_BYTES_MIN: Final = 32 * 1024  # below, one read and one send are cheaper than two sends
SEND_BUFFER_BYTES: Final = 1 << 20  # a full socket costs a trip through the loop; make it rare
_JOIN_BYTES_MAX: Final = 64 * 1024
_SENDFILE_BYTES_MAX: Final = 1 << 20  # one reader's share of a turn of the loop
_NOT_WAITING: Final = -1
_PEER_GONE: Final = frozenset({7, 8})  # TCP_CLOSE and TCP_CLOSE_WAIT, as Linux numbers them


class Writer(Protocol):
    """The interface that a connection uses."""

    @property
    def queued_bytes(self) -> int:
        """Bytes that are queued and not sent yet."""
        ...

    @property
    def has_left(self) -> bool:
        """True if the peer is known to have closed, although the connection does not read."""
        ...

    def queue(self, part: Part) -> None: ...
    def flush(self) -> None: ...

    def finish(self) -> None:
        """Tell the peer that nothing follows what was sent."""
        ...

    def close(self) -> None: ...


class SocketWriter:
    """Writes to the socket itself: responses leave in the same turn, file ranges by sendfile.

    The descriptor is the transport's, which keeps it until it has called `connection_lost`: that
    is when the writer has to be closed at the latest. The loop does not lend a transport's
    descriptor for waiting, so a duplicate is made for as long as the socket is full.
    """

    __slots__ = ("_is_wide", "_loop", "_parts", "_socket", "_waited", "_writable", "queued_bytes")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, writable: Callable[[], None]
    ) -> None:
        """`writable` is called when a full socket accepts more again; it has to flush."""
        self._loop = loop
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._writable = writable
        self._parts: deque[Part] = deque()
        self._waited = _NOT_WAITING  # the duplicate
        self._is_wide = False
        self.queued_bytes = 0

    def queue(self, part: Part) -> None:
        if not isinstance(part, bytes):
            if part.size_bytes < SENDFILE_BYTES_MIN or part.file.fileno() < 0:
                part = part.file.read(part.position, part.size_bytes)
            else:
                if not self._is_wide:
                    self._widen()
                self.queued_bytes += part.size_bytes
                self._parts.append(part)
                return
        self.queued_bytes += len(part)
        self._parts.append(part)

    def flush(self) -> None:
        """Send what the socket accepts now; the rest follows when it accepts more.

        Raises OSError when the peer has gone.
        """
        if self._waited != _NOT_WAITING:
            return
        parts = self._parts
        try:
            while parts:
                head = parts[0]
                if not isinstance(head, bytes):
                    if not self._send_range(head):
                        self._wait()
                        return
                elif len(parts) > 1:
                    self._send_joined(head)
                elif (sent := self._socket.send(head)) == len(head):
                    self.queued_bytes -= sent
                    parts.popleft()
                else:
                    self._note_sent(head, sent)
        except (BlockingIOError, InterruptedError):
            self._wait()

    def finish(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    @property
    def has_left(self) -> bool:
        return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _PEER_GONE

    def close(self) -> None:
        if self._waited != _NOT_WAITING:
            self._stop_waiting()
        self._parts.clear()
        self._socket.detach()

    def _send_joined(self, data: bytes) -> None:
        """Send the head of several parts, together with other small ones behind it."""
        if len(data) < _JOIN_BYTES_MAX:
            data = self._join_head()
        # MSG_MORE keeps a fetch response's header and the file range behind it in one TCP segment.
        more = socket.MSG_MORE if len(self._parts) > 1 else 0
        self._note_sent(data, self._socket.send(data, more))

    def _note_sent(self, data: bytes, sent: int) -> None:
        self.queued_bytes -= sent
        if sent == len(data):
            self._parts.popleft()
        else:
            self._parts[0] = data[sent:]
            raise BlockingIOError

    def _join_head(self) -> bytes:
        """Make one string of the byte strings at the head, so that they leave in one call."""
        joined, size = [], 0
        while self._parts and size < _JOIN_BYTES_MAX:
            part = self._parts[0]
            if not isinstance(part, bytes):
                break
            joined.append(part)
            size += len(part)
            self._parts.popleft()
        data = b"".join(joined)
        self._parts.appendleft(data)
        return data

    def _send_range(self, part: FileRange) -> bool:
        """Send from the page cache; False when the rest must wait for the loop's next turn."""
        size = min(part.size_bytes, _SENDFILE_BYTES_MAX)
        sent = os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, size)
        if sent == 0:
            raise ConnectionResetError(
                "the segment file ended before the range that was to be sent"
            )
        self.queued_bytes -= sent
        if sent == part.size_bytes:
            self._parts.popleft()
            return True
        self._parts[0] = part._replace(
            position=Position(part.position + sent), size_bytes=part.size_bytes - sent
        )
        return False

    def _widen(self) -> None:
        """Enlarge the send buffer: only readers of much data need it; the system may grant less."""
        self._is_wide = True
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < SEND_BUFFER_BYTES:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def _wait(self) -> None:
        assert self._waited == _NOT_WAITING, "nothing is sent while the socket is full"
        self._waited = os.dup(self._socket.fileno())
        self._loop.add_writer(self._waited, self._continue)

    def _stop_waiting(self) -> None:
        self._loop.remove_writer(self._waited)
        os.close(self._waited)
        self._waited = _NOT_WAITING

    def _continue(self) -> None:
        self._stop_waiting()
        self._writable()


class TransportWriter:
    """Writes through the transport: for simulated networks, and where bytes must be encrypted."""

    __slots__ = ("_joined", "_joined_bytes", "_transport")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._joined: list[bytes] = []
        self._joined_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self._joined_bytes + self._transport.get_write_buffer_size()

    @property
    def has_left(self) -> bool:
        return False

    def queue(self, part: Part) -> None:
        if not isinstance(part, bytes):
            part = part.file.read(part.position, part.size_bytes)
        self._joined.append(part)
        self._joined_bytes += len(part)

    def flush(self) -> None:
        if self._joined:
            self._transport.write(b"".join(self._joined))
            self.close()

    def finish(self) -> None:
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        self._joined.clear()
        self._joined_bytes = 0
