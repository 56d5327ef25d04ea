import tracemalloc

import pytest

from fakes.arriving import arrive
from ottla.errors import ProtocolViolation
from ottla.protocol.frames import FrameParser


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def test_several_frames_in_one_piece_come_out_together() -> None:
    parser = FrameParser(frame_bytes_max=10)
    assert arrive(parser, framed(b"one") + framed(b"") + framed(b"two")[:5]) == [b"one", b""]
    assert arrive(parser, b"wo") == [b"two"]


def test_a_frame_may_be_exactly_as_large_as_allowed() -> None:
    assert arrive(FrameParser(frame_bytes_max=3), framed(b"one")) == [b"one"]


@pytest.mark.parametrize("length", [4, 2**31 - 1, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_frame_arrives(length: int) -> None:
    parser = FrameParser(frame_bytes_max=3)
    with pytest.raises(ProtocolViolation, match="at most 3 are allowed"):
        arrive(parser, length.to_bytes(4, "big"))


def test_a_length_out_of_bounds_is_refused_also_when_it_arrives_in_pieces() -> None:
    parser = FrameParser(frame_bytes_max=3)
    assert arrive(parser, b"\x7f") == []
    with pytest.raises(ProtocolViolation):
        arrive(parser, b"\xff\xff\xff")


def test_a_length_may_arrive_in_pieces_behind_a_frame() -> None:
    large = bytes(0x010203)  # none of the bytes of its length is zero but the first
    parser = FrameParser(frame_bytes_max=1 << 20)
    assert arrive(parser, framed(b"one") + framed(large)[:3]) == [b"one"]
    assert arrive(parser, framed(large)[3:]) == [large]


def test_frames_stay_what_they_are_when_more_arrives() -> None:
    parser = FrameParser(frame_bytes_max=10)
    frames = arrive(parser, framed(b"whole") + framed(b"parts")[:6])
    frames += arrive(parser, framed(b"parts")[6:])
    arrive(parser, framed(b"later"))
    assert frames == [b"whole", b"parts"]


def test_there_is_always_room_for_the_next_bytes() -> None:
    parser = FrameParser(frame_bytes_max=1 << 20)
    sizes = [len(parser.receive_buffer())]
    for piece in (framed(bytes(sizes[0] - 7)), b"\0\0\0", b"\x03", b"on", b"e"):
        arrive(parser, piece)
        sizes.append(len(parser.receive_buffer()))
    assert min(sizes) > 0


def test_a_large_frame_in_small_pieces_is_kept_once() -> None:
    """Copying what is there for each piece would be quadratic and need it twice."""
    size_bytes = 8 << 20
    parser = FrameParser(frame_bytes_max=size_bytes)
    arrive(parser, size_bytes.to_bytes(4, "big"))  # from here on there is room for all of it
    piece = bytes(64 << 10)
    tracemalloc.start()
    try:
        for _ in range(size_bytes // len(piece) - 1):
            assert arrive(parser, piece) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 0.1 * size_bytes
    assert [len(frame) for frame in arrive(parser, piece)] == [size_bytes]
