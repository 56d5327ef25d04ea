"""Reading is the inverse of writing, for every message in every version."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.layouts import Layout, all_layouts
from fakes.random_messages import RandomMessages
from ottla.protocol.codec import decode, encode
from sizes import examples

layouts = st.sampled_from(all_layouts())
seeds = st.integers(0, 2**32)


@settings(max_examples=examples(400))
@given(layouts, seeds)
def test_a_message_survives_the_wire(layout: Layout, seed: int) -> None:
    message = RandomMessages(seed).message(*layout)
    assert decode(*layout, encode(message, layout.version)) == message


@settings(max_examples=examples(100))
@given(layouts, seeds, st.binary(max_size=9), st.binary(max_size=9))
def test_bytes_before_and_behind_a_message_do_not_matter(
    layout: Layout, seed: int, before: bytes, behind: bytes
) -> None:
    message = RandomMessages(seed).message(*layout)
    wire = before + encode(message, layout.version) + behind
    assert decode(*layout, wire, len(before)) == message


@settings(max_examples=examples(100))
@given(layouts, seeds)
def test_any_kind_of_buffer_will_do(layout: Layout, seed: int) -> None:
    message = RandomMessages(seed).message(*layout)
    wire = encode(message, layout.version)
    assert decode(*layout, bytearray(wire)) == message
    assert decode(*layout, memoryview(wire)) == message
