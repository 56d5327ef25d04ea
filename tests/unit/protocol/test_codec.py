"""Messages there and back: whole, in slices, behind a header."""

import pytest

from fakes.layouts import Layout, all_layouts
from fakes.random_messages import RandomMessages
from ottla.errors import ErrorCode, TooManyElements
from ottla.model import Uuid
from ottla.protocol.codec import (
    M,
    Steps,
    decode,
    decode_in_slices,
    decoder_source,
    encode,
    encode_in_slices,
    encode_into,
    encoder_source,
)
from ottla.protocol.codegen import SLICE_ELEMENTS
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from ottla.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")


def test_encode_into_appends_behind_a_header() -> None:
    out = bytearray(b"header")
    encode_into(out, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert out == b"header\x00\x1b"


def test_null_and_empty_differ() -> None:
    for version in (1, 12):
        assert decode(MetadataRequest, version, encode(MetadataRequest(), version)).topics == []
        everything = encode(MetadataRequest(topics=None), version)
        assert decode(MetadataRequest, version, everything).topics is None


def test_a_nullable_struct_is_announced_by_one_byte() -> None:
    topic = HeartbeatTopicPartitions(topic_id=Uuid(bytes(range(16))), partitions=[1])
    given = ConsumerGroupHeartbeatResponse(assignment=HeartbeatAssignment(topic_partitions=[topic]))
    nothing = encode(ConsumerGroupHeartbeatResponse(), 0)
    assert nothing[-2:] == b"\xff\x00"
    wire = encode(given, 0)
    assert wire[len(nothing) - 2] == 1
    assert decode(ConsumerGroupHeartbeatResponse, 0, wire) == given
    assert decode(DescribeTopicPartitionsRequest, 0, b"\x01\0\0\0\0\xff\0").cursor is None


def test_the_written_code_can_be_read() -> None:
    assert "unpack_from_ih" in decoder_source(HeartbeatRequest, 3)
    assert "pack_ih" in encoder_source(HeartbeatRequest, 3)


def stepped(steps: Steps[M]) -> tuple[M, list[int]]:
    """What steps return, and what they yield on their way."""
    yielded = []
    while True:
        try:
            yielded.append(next(steps))
        except StopIteration as over:
            return over.value, yielded


@pytest.mark.parametrize("layout", all_layouts(), ids=str)
def test_in_slices_every_message_is_read_and_written_the_same(layout: Layout) -> None:
    message_class, version = layout
    message = RandomMessages(seed=version).message(message_class, version)
    wire = encode(message, version)
    out = bytearray()
    stepped(encode_in_slices(out, message, version))
    assert out == wire
    read, _ = stepped(decode_in_slices(message_class, version, wire, 0, elements_max=10**6))
    assert read == decode(message_class, version, wire)


def topics(count: int) -> bytes:
    return encode(MetadataRequest(topics=[MetadataRequestTopic(name="t")] * count), 12)


def test_the_number_of_slices_grows_with_the_message_and_not_faster() -> None:
    for count in (1000, 4000):
        steps = decode_in_slices(MetadataRequest, 12, topics(count), 0, elements_max=count)
        read, yielded = stepped(steps)
        assert len(read.topics or ()) == sum(yielded) == count
        assert max(yielded) <= SLICE_ELEMENTS
        _, yielded = stepped(encode_in_slices(bytearray(), read, 12))
        assert sum(yielded) == count
        assert max(yielded) <= SLICE_ELEMENTS


@pytest.mark.parametrize("in_slices", [False, True])
def test_no_more_elements_than_allowed_are_read(in_slices: bool) -> None:
    def read(wire: bytes, elements_max: int) -> MetadataRequest:
        if in_slices:
            steps = decode_in_slices(MetadataRequest, 12, wire, 0, elements_max=elements_max)
            return stepped(steps)[0]
        return decode(MetadataRequest, 12, wire, elements_max=elements_max)

    assert len(read(topics(1000), 1000).topics or ()) == 1000
    with pytest.raises(TooManyElements, match="MetadataRequest v12: more than 999 elements"):
        read(topics(1000), 999)
