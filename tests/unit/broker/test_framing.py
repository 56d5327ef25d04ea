"""Frames that arrive in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.framing import FIRST_BUFFER_BYTES, LENGTH_BYTES, PartialFrame, frame_bytes
from ottla.broker.receive_budget import BufferPool
from ottla.errors import ProtocolViolation

MAX_BYTES = 1 << 20


def framed(size: int) -> bytes:
    return size.to_bytes(4, "big", signed=True) + bytes(i % 251 for i in range(size))


@given(st.integers(8, 300_000), st.integers(1, 40), st.data())
def test_a_frame_is_whole_however_its_bytes_arrive(
    size: int, head: int, data: st.DataObject
) -> None:
    wire = framed(size)
    head = min(head, len(wire) - 1)
    frame = PartialFrame(memoryview(wire)[:head], 5.0, BufferPool(), MAX_BYTES)
    held = len(frame.buffer)
    position = head
    while not frame.is_whole:
        room = frame.room
        assert room, "there is always room for the rest"
        count = data.draw(st.integers(max(1, len(room) // 8), len(room)))
        room[:count] = wire[position : position + count]
        position += count
        held += frame.add(count)
        assert held == len(frame.buffer)
        assert len(frame.buffer) <= max(FIRST_BUFFER_BYTES, 4 * position, 64 << 10) + (64 << 10)
    assert position == len(wire)
    assert bytes(frame.buffer[: frame.size]) == wire
    assert frame.begun_s == 5.0


@pytest.mark.parametrize("size", [-1, 0, 7, MAX_BYTES + 1])
def test_a_size_that_no_request_has_is_a_violation(size: int) -> None:
    wire = size.to_bytes(4, "big", signed=True)
    with pytest.raises(ProtocolViolation, match=f"a frame of {size} bytes"):
        frame_bytes(bytearray(wire), 0, MAX_BYTES)
    frame = PartialFrame(memoryview(wire)[:3], 0.0, BufferPool(), MAX_BYTES)
    frame.room[:1] = wire[3:]
    with pytest.raises(ProtocolViolation):
        frame.add(1)


def test_the_size_of_a_frame_includes_its_length() -> None:
    assert frame_bytes(bytearray(b"xx" + framed(8)), 2, MAX_BYTES) == LENGTH_BYTES + 8
