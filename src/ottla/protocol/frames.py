"""Bytes to frames: every request and answer stands behind its length."""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from ottla.errors import ProtocolViolation

_LENGTH: Final = Struct(">i")


@dataclass(slots=True)
class FrameParser:
    """Cuts a stream into frames, however its bytes arrive; owned by one connection.

    A length that is negative or beyond `frame_bytes_max` is a `ProtocolViolation`, raised before
    any of that frame is kept. The stream has then lost its meaning: close it.
    """

    frame_bytes_max: int
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[bytes]:
        """Accept whatever arrived; return the frames that are now whole, without their length."""
        if not self._buffer:
            frames, position = self._cut(data)
            self._buffer += data[position:]
        else:
            self._buffer += data
            frames, position = self._cut(self._buffer)
            del self._buffer[:position]
        return frames

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished frame has arrived."""
        return len(self._buffer)

    def _cut(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        frames = []
        position = 0
        with memoryview(data) as view:
            while (start := position + _LENGTH.size) <= len(data):
                (size_bytes,) = _LENGTH.unpack_from(data, position)
                if not 0 <= size_bytes <= self.frame_bytes_max:
                    raise ProtocolViolation(
                        f"a frame of {size_bytes} bytes, at most {self.frame_bytes_max} are allowed"
                    )
                stop = start + size_bytes
                if stop > len(data):
                    break
                frames.append(bytes(view[start:stop]))
                position = stop
        return frames, position
