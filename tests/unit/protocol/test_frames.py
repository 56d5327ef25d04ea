import tracemalloc

import pytest

from ottla.errors import ProtocolViolation
from ottla.protocol.frames import FrameParser


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def test_several_frames_in_one_piece_come_out_together() -> None:
    parser = FrameParser(frame_bytes_max=10)
    assert parser.feed(framed(b"one") + framed(b"") + framed(b"two")[:5]) == [b"one", b""]
    assert parser.pending_bytes == 5
    assert parser.feed(b"wo") == [b"two"]
    assert parser.pending_bytes == 0


def test_a_frame_may_be_exactly_as_large_as_allowed() -> None:
    assert FrameParser(frame_bytes_max=3).feed(framed(b"one")) == [b"one"]


@pytest.mark.parametrize("length", [4, 2**31 - 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_frame_arrives(length: int) -> None:
    parser = FrameParser(frame_bytes_max=3)
    with pytest.raises(ProtocolViolation, match="at most 3 are allowed"):
        parser.feed(length.to_bytes(4, "big"))


def test_a_length_out_of_bounds_is_refused_also_when_it_arrives_in_pieces() -> None:
    parser = FrameParser(frame_bytes_max=3)
    assert parser.feed(b"\x7f") == []
    with pytest.raises(ProtocolViolation):
        parser.feed(b"\xff\xff\xff")


def test_frames_are_bytes_of_their_own() -> None:
    parser = FrameParser(frame_bytes_max=10)
    for piece in (framed(b"whole"), framed(b"parts")[:6], framed(b"parts")[6:]):
        for frame in parser.feed(piece):
            assert type(frame) is bytes


def test_a_large_frame_in_small_pieces_is_kept_once() -> None:
    """Copying what is there for each piece would be quadratic and need it twice."""
    size_bytes = 8 << 20
    parser = FrameParser(frame_bytes_max=size_bytes)
    parser.feed(size_bytes.to_bytes(4, "big"))
    piece = bytes(64 << 10)
    tracemalloc.start()
    try:
        for _ in range(size_bytes // len(piece) - 1):
            assert parser.feed(piece) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2.5 * size_bytes  # a growing bytearray keeps some room in reserve
    assert [len(frame) for frame in parser.feed(piece)] == [size_bytes]
