"""The way out of a connection: bytes and file ranges, in order, without blocking."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ottla.broker.answers import Part
from ottla.model import Position
from ottla.storage.log import FileRange

SENDFILE_BYTES_MIN: Final = 32 * 1024  # below, one read and one send are cheaper than two sends
SEND_BUFFER_BYTES: Final = 1 << 20  # a full socket costs a trip through the loop; make it rare
_JOIN_BYTES_MAX: Final = 64 * 1024
_SENDFILE_BYTES_MAX: Final = 1 << 20  # one reader's share of a turn of the loop


class Writer(Protocol):
    """What a connection asks of its way out."""

    queued_bytes: int

    def queue(self, part: Part) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class SocketWriter:
    """Writes to the socket itself: answers leave in the same turn, file ranges by sendfile.

    It owns a duplicate of the descriptor, because the transport may close its own at any time,
    and because the loop does not lend a transport's descriptor for waiting.
    """

    __slots__ = ("_armed", "_drained", "_loop", "_parts", "_socket", "queued_bytes")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, drained: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._drained = drained
        self._parts: deque[Part] = deque()
        self._armed = False
        self.queued_bytes = 0

    def queue(self, part: Part) -> None:
        if not isinstance(part, bytes):
            if part.size_bytes < SENDFILE_BYTES_MIN:
                part = part.file.read(part.position, part.size_bytes)
            else:
                self._widen()
                self.queued_bytes += part.size_bytes
                self._parts.append(part)
                return
        self.queued_bytes += len(part)
        self._parts.append(part)

    def flush(self) -> None:
        """Send what the socket takes now; the rest follows when it takes more.

        Raises OSError when the peer has gone.
        """
        if self._armed:
            return
        try:
            while self._parts:
                if isinstance(self._parts[0], bytes):
                    self._send_bytes()
                elif not self._send_range(self._parts[0]):
                    self._arm()
                    return
        except (BlockingIOError, InterruptedError):
            self._arm()

    def close(self) -> None:
        if self._armed:
            self._loop.remove_writer(self._socket.fileno())
            self._armed = False
        self._parts.clear()
        self._socket.close()

    def _send_bytes(self) -> None:
        parts = self._parts
        data = parts[0]
        assert isinstance(data, bytes)
        if len(parts) > 1 and len(data) < _JOIN_BYTES_MAX:
            data = self._join_head()
        # MSG_MORE keeps a fetch answer's header and the file range behind it in one segment.
        flags = socket.MSG_MORE if len(parts) > 1 else 0
        sent = self._socket.send(data, flags)
        self.queued_bytes -= sent
        if sent == len(data):
            parts.popleft()
        else:
            parts[0] = data[sent:]
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
            raise ConnectionResetError("the segment ended before the range that was promised")
        self.queued_bytes -= sent
        if sent == part.size_bytes:
            self._parts.popleft()
            return True
        self._parts[0] = part._replace(
            position=Position(part.position + sent), size_bytes=part.size_bytes - sent
        )
        return False

    def _widen(self) -> None:
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < SEND_BUFFER_BYTES:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._armed = False
        try:
            self.flush()
        except OSError:
            self._parts.clear()
            self.queued_bytes = 0
        self._drained()


class TransportWriter:
    """Writes through the transport: for simulated networks, and where bytes must be encrypted."""

    __slots__ = ("_joined", "_transport", "queued_bytes")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._joined: list[bytes] = []
        self.queued_bytes = 0

    def queue(self, part: Part) -> None:
        if not isinstance(part, bytes):
            part = part.file.read(part.position, part.size_bytes)
        self._joined.append(part)

    def flush(self) -> None:
        if self._joined:
            self._transport.write(b"".join(self._joined))
            self._joined.clear()
        self.queued_bytes = self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._joined.clear()
