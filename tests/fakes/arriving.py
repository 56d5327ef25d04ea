"""Bytes that arrive as an event loop would let them arrive."""

from ottla.protocol.frames import FrameParser


def arrive(parser: FrameParser, data: bytes) -> list[bytes | bytearray]:
    """Give a parser these bytes, as many at once as it has room for; the frames they complete."""
    frames = list[bytes | bytearray]()
    while data:
        room = parser.receive_buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        frames += parser.take(count)
        data = data[count:]
    return frames
