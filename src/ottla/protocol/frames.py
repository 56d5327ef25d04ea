"""Splits a byte stream into frames: every request and response is preceded by its length."""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from ottla.errors import ProtocolViolation

_LENGTH: Final = Struct(">i")
_FIRST_BYTES: Final = 64 << 10  # read at once while the size of the next frame is unknown


@dataclass(slots=True)
class FrameParser:
    """Splits a stream into frames, however its bytes arrive; owned by one connection.

    Bytes are received into `receive_buffer`, so that a large frame is never copied. A length that
    is negative or beyond `frame_bytes_max` is a `ProtocolViolation`, raised before any of that
    frame is kept. The rest of the stream cannot be parsed then: close it.
    """

    frame_bytes_max: int
    _first: bytearray = field(default_factory=lambda: bytearray(_FIRST_BYTES))
    _frame: bytearray | None = None  # a frame whose length is known and which is incomplete
    _filled: int = 0  # bytes of `_frame`, or of `_first` without one

    def receive_buffer(self) -> memoryview:
        """The buffer that the next bytes are received into; never empty."""
        return memoryview(self._first if self._frame is None else self._frame)[self._filled :]

    def received(self, count: int) -> bytes:
        """The `count` bytes that were just received, before `take`."""
        return bytes(self.receive_buffer()[:count])

    def take(self, count: int) -> list[bytes | bytearray]:
        """Note `count` received bytes; return the frames now complete, without their lengths."""
        self._filled += count
        if self._frame is None:
            return self._cut()
        if self._filled < len(self._frame):
            return []
        whole, self._frame, self._filled = self._frame, None, 0
        return [whole]

    def _cut(self) -> list[bytes | bytearray]:
        frames = list[bytes | bytearray]()
        position = 0
        with memoryview(self._first)[: self._filled] as view:
            while (start := position + _LENGTH.size) <= len(view):
                (size_bytes,) = _LENGTH.unpack_from(view, position)
                if not 0 <= size_bytes <= self.frame_bytes_max:
                    raise ProtocolViolation(
                        f"a frame of {size_bytes} bytes; at most {self.frame_bytes_max} are allowed"
                    )
                position = start + size_bytes
                if position > len(view):
                    self._begin(size_bytes, view[start:])
                    return frames
                frames.append(bytes(view[start:position]))
            rest = bytes(view[position:])  # less than a length
        self._first[: len(rest)] = rest
        self._filled = len(rest)
        return frames

    def _begin(self, size_bytes: int, content: memoryview) -> None:
        self._frame = bytearray(size_bytes)
        self._frame[: len(content)] = content
        self._filled = len(content)
