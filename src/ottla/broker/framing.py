"""Requests on a byte stream: each is behind its length, and may arrive in any number of pieces."""

from struct import Struct
from typing import Final

from ottla.broker.receive_budget import BufferPool
from ottla.errors import ProtocolViolation

LENGTH_BYTES: Final = 4
FIRST_BUFFER_BYTES: Final = 4096
_LENGTH: Final = Struct(">i")
_REQUEST_BYTES_MIN: Final = 8  # api key, version and correlation id


def frame_bytes(view: memoryview | bytearray, position: int, request_bytes_max: int) -> int:
    """The size of the frame at `position`, its length included; at least that must be there."""
    (size,) = _LENGTH.unpack_from(view, position)
    if not _REQUEST_BYTES_MIN <= size <= request_bytes_max:
        raise ProtocolViolation(f"a frame of {size} bytes")
    return LENGTH_BYTES + int(size)


class PartialFrame:
    """A frame of which only the beginning has arrived, in a buffer of its own.

    Memory is given to it as its bytes arrive, never because a client announced a size.
    """

    __slots__ = ("_pool", "_request_bytes_max", "begun_s", "buffer", "filled", "size")

    def __init__(
        self, head: memoryview, begun_s: float, pool: BufferPool, request_bytes_max: int
    ) -> None:
        self._pool = pool
        self._request_bytes_max = request_bytes_max
        self.begun_s = begun_s
        self.filled = len(head)
        self.size = LENGTH_BYTES  # until the length is known
        if len(head) >= LENGTH_BYTES:
            self.size = frame_bytes(head, 0, request_bytes_max)
        self.buffer = self._larger(head)

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return memoryview(self.buffer)[self.filled : self.size]

    @property
    def is_whole(self) -> bool:
        return self.filled == self.size > LENGTH_BYTES

    def add(self, count: int) -> int:
        """Count bytes that were received into `room`; returns how many bytes the buffer grew by.

        A buffer that is full grows to four times of what has arrived, so that a slow sender
        holds little.
        """
        self.filled += count
        if self.filled < min(len(self.buffer), self.size):
            return 0
        if self.size == LENGTH_BYTES:
            self.size = frame_bytes(self.buffer, 0, self._request_bytes_max)
        if self.filled == self.size:
            return 0
        before_bytes = len(self.buffer)
        self.buffer = self._larger(memoryview(self.buffer)[: self.filled])
        return len(self.buffer) - before_bytes

    def _larger(self, head: memoryview) -> bytearray:
        larger = self._pool.take(min(self.size, max(FIRST_BUFFER_BYTES, 4 * self.filled)))
        larger[: len(head)] = head
        return larger
