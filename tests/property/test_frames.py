"""Frames are what was sent, however it arrives."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.arriving import arrive
from ottla.protocol.frames import FrameParser

SMALL = st.binary(max_size=40)
LARGE = st.just(bytes(0x0102))  # a length with two bytes that are not zero


@given(st.lists(SMALL | LARGE, max_size=8), st.data())
def test_frames_do_not_depend_on_how_bytes_arrive(frames: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    parser, got = FrameParser(frame_bytes_max=1000), list[bytes | bytearray]()
    while wire:
        size = data.draw(st.integers(1, min(len(wire), 100)))
        got += arrive(parser, wire[:size])
        wire = wire[size:]
    assert got == frames
