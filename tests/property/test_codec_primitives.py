"""Varints of every size and sign."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import (
    read_unsigned_varint,
    read_varint,
    read_varlong,
    write_unsigned_varint,
    write_varint,
    write_varlong,
)

Read = Callable[[bytes, int], tuple[int, int]]


@given(st.integers(0, 2**32 - 1))
@example(127)
@example(128)
@example(2**32 - 1)
def test_an_unsigned_varint_comes_back(value: int) -> None:
    out = bytearray(b"before")
    write_unsigned_varint(out, value)
    assert read_unsigned_varint(out, 6) == (value, len(out))


@given(st.integers(-(2**31), 2**31 - 1))
@example(-(2**31))
def test_a_varint_comes_back_with_its_sign(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out, 0) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
def test_a_varlong_comes_back_with_its_sign(value: int) -> None:
    out = bytearray()
    write_varlong(out, value)
    assert read_varlong(out, 0) == (value, len(out))


@pytest.mark.parametrize("read", [read_unsigned_varint, read_varint, read_varlong])
@given(wire=st.binary(max_size=12))
def test_random_bytes_are_a_number_or_a_violation(read: Read, wire: bytes) -> None:
    try:
        value, position = read(wire, 0)
    except ProtocolViolation:
        return
    assert 0 < position <= min(len(wire), 10)
    assert -(2**63) <= value < 2**63
