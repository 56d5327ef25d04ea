import pytest

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import (
    read_unsigned_varint,
    read_varint,
    read_varlong,
    write_unsigned_varint,
    write_varint,
    write_varlong,
)


@pytest.mark.parametrize(
    ("value", "wire"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_an_unsigned_varint_has_seven_bits_to_a_byte_lowest_first(value: int, wire: str) -> None:
    out = bytearray()
    write_unsigned_varint(out, value)
    assert out.hex() == wire
    assert read_unsigned_varint(out, 0) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "wire"),
    [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (-(2**31), "ffffffff0f")],
)
def test_a_varint_keeps_its_sign_in_the_lowest_bit(value: int, wire: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == wire
    assert read_varint(out, 0) == (value, len(out))


def test_a_varlong_of_64_bits_takes_ten_bytes() -> None:
    out = bytearray()
    write_varlong(out, -(2**63))
    assert out.hex() == "ffffffffffffffffff01"
    assert read_varlong(out, 0) == (-(2**63), 10)


@pytest.mark.parametrize("wire", [b"", b"\x80", b"\x80\x80\x80\x80"])
def test_a_varint_that_ends_nowhere_is_refused(wire: bytes) -> None:
    for read in (read_unsigned_varint, read_varint, read_varlong):
        with pytest.raises(ProtocolViolation, match="end inside"):
            read(wire, 0)


def test_a_varint_of_six_bytes_and_a_varlong_of_eleven_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="longer than 5 bytes"):
        read_unsigned_varint(b"\x80" * 5 + b"\x00", 0)
    with pytest.raises(ProtocolViolation, match="longer than 10 bytes"):
        read_varlong(b"\x80" * 10 + b"\x00", 0)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="exceeds"):
        read_unsigned_varint(b"\xff\xff\xff\xff\x10", 0)
    with pytest.raises(ProtocolViolation, match="exceeds"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)


def test_writing_a_number_out_of_range_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        write_unsigned_varint(bytearray(), -1)
    with pytest.raises(AssertionError):
        write_varint(bytearray(), 2**31)
    with pytest.raises(AssertionError):
        write_varlong(bytearray(), 2**63)
