"""Whatever arrives, reading ends soon, in little memory, with a message or a ProtocolViolation."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.layouts import Layout, all_layouts, layouts_of
from fakes.random_messages import RandomMessages
from ottla.errors import ProtocolViolation
from ottla.protocol.api import APIS, parse_request_header
from ottla.protocol.codec import decode, encode
from ottla.protocol.primitives import Buffer
from ottla.protocol.schema import message_versions
from sizes import examples

HUGE_COUNTS = ((2**31 - 1).to_bytes(4, "big"), (2**28).to_bytes(4, "big"))
HUGE_VARINTS = (b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x01")  # the same two
REQUEST_BYTES = 40
MEMORY_BYTES_MAX = 64 << 10

layouts = st.sampled_from(all_layouts())


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails when more than a little memory was in use at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX


@pytest.mark.slow
def test_a_message_cut_anywhere_is_refused() -> None:
    for layout in all_layouts():
        wire = encode(RandomMessages(seed=7).message(*layout), layout.version)
        for size in range(len(wire)):
            with pytest.raises(ProtocolViolation):
                decode(*layout, wire[:size])


@pytest.mark.slow
def test_a_huge_count_anywhere_in_a_small_request_costs_nothing() -> None:
    for layout in all_requests():
        wire = encode(RandomMessages(seed=3).message(*layout), layout.version)[:REQUEST_BYTES]
        flexible = layout.version in message_versions(layout.message_class).flexible
        attempt(layout, wire)  # compiles the decoder, which is allowed to take memory
        with little_memory():
            for count in HUGE_VARINTS if flexible else HUGE_COUNTS:
                for position in range(len(wire)):
                    attempt(layout, wire[:position] + count + wire[position + len(count) :])


def all_requests() -> list[Layout]:
    return [layout for api in APIS.values() for layout in layouts_of(api.request_class)]


def attempt(layout: Layout, wire: Buffer) -> None:
    with suppress(ProtocolViolation):
        decode(*layout, wire)


@settings(max_examples=examples(600))
@given(layouts, st.binary(max_size=80))
def test_random_bytes_are_a_message_or_a_violation(layout: Layout, wire: bytes) -> None:
    attempt(layout, wire)
    attempt(layout, memoryview(wire))


@settings(max_examples=examples(600))
@given(layouts, st.integers(0, 2**32), st.data())
def test_a_message_with_one_byte_changed_is_a_message_or_a_violation(
    layout: Layout, seed: int, data: st.DataObject
) -> None:
    wire = bytearray(encode(RandomMessages(seed).message(*layout), layout.version) or b"\0")
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    attempt(layout, bytes(wire))


@given(st.binary(max_size=40))
def test_random_bytes_are_a_request_header_or_a_violation(wire: bytes) -> None:
    with suppress(ProtocolViolation):
        header, position = parse_request_header(wire)
        assert position <= len(wire)
        assert header.client_id is None or len(header.client_id) <= len(wire)
