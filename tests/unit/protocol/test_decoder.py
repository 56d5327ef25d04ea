"""Decoding one message: what is read, what is a copy, what is refused and how early."""

import tracemalloc

import pytest

from ottla.errors import ProtocolViolation, TooManyElements
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.classic_groups import HeartbeatRequest
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.messages.sasl import SaslAuthenticateRequest
from ottla.protocol.primitives import TAGGED_FIELDS_MAX, write_unsigned_varint
from ottla.protocol.schema import array, int8, message, string, struct, wire

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")


def tags(*fields: tuple[int, bytes], count: int | None = None) -> bytes:
    """A tag section as some other program might write it."""
    out = bytearray()
    write_unsigned_varint(out, len(fields) if count is None else count)
    for tag, content in fields:
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(content))
        out += content
    return bytes(out)


def heartbeat_with(section: bytes) -> bytes:
    """A flexible heartbeat whose tag section is replaced."""
    return encode(HEARTBEAT, 4)[:-1] + section


def test_record_batches_are_views_and_other_bytes_are_copies() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")]
            )
        ]
    )
    wire = bytearray(encode(request, 9))
    batch = decode(ProduceRequest, 9, wire).topic_data[0].partition_data[0].records
    assert isinstance(batch, memoryview)
    wire[wire.index(b"batch")] = ord("B")
    assert bytes(batch) == b"Batch"

    token = decode(
        SaslAuthenticateRequest, 2, memoryview(encode(SaslAuthenticateRequest(auth_bytes=b"x"), 2))
    )
    assert type(token.auth_bytes) is bytes


def test_bytes_behind_a_message_are_ignored() -> None:
    """librdkafka writes four zeros where one belongs when it asks for all topics."""
    request = decode(MetadataRequest, 12, b"\0\0\0\0" + b"\x01\0\0")
    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=False)


def test_unknown_tagged_fields_are_skipped() -> None:
    wire = heartbeat_with(tags((0, b"future"), (77, b""), (2**31, b"x" * 300)))
    assert decode(HeartbeatRequest, 4, wire) == HEARTBEAT


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        (tags((1, b"a"), (1, b"b")), "tag 1 follows tag 1"),
        (tags((2, b"a"), (1, b"b")), "tag 1 follows tag 2"),
        (tags((1, b"a"), count=1_000_000), "1000000 tagged fields"),
        (tags(*[(tag, b"") for tag in range(TAGGED_FIELDS_MAX + 1)]), "257 tagged fields"),
        (b"\x01\x00\x7fshort", "end inside"),
        (b"\x01\x00\xff\xff\xff\xff\x0f", "end inside"),
        (b"\x01\xff\xff\xff\xff\xff\x01", "longer than 5 bytes"),
        (b"\xff\xff\xff\xff\xff\x01", "longer than 5 bytes"),
    ],
)
def test_a_tag_section_out_of_order_is_refused(section: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        decode(HeartbeatRequest, 4, heartbeat_with(section))


def test_a_million_tagged_fields_are_refused_before_they_are_read() -> None:
    wire = heartbeat_with(tags(count=1_000_000) + b"\0\0" * 1_000_000)
    decode(HeartbeatRequest, 4, heartbeat_with(tags()))  # compiles the decoder, which takes memory
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation, match="1000000 tagged fields"):
            decode(HeartbeatRequest, 4, wire)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 10


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\0" * 9])
def test_a_known_tagged_field_must_fill_its_size(content: bytes) -> None:
    wire = encode(ApiVersionsResponse(), 3)[:-1] + tags((1, content))
    with pytest.raises(ProtocolViolation):
        decode(ApiVersionsResponse, 3, wire)


def test_a_known_tagged_field_between_unknown_ones_is_read() -> None:
    wire = encode(ApiVersionsResponse(), 3)[:-1] + tags((1, (9).to_bytes(8, "big")), (50, b"new"))
    assert decode(ApiVersionsResponse, 3, wire).finalized_features_epoch == 9


@pytest.mark.parametrize(
    ("version", "wire", "complaint"),
    [
        (3, b"\xff\xff", "group_id has the negative length -1"),
        (3, b"\x80\x00", "group_id has the negative length -32768"),
        (4, b"\x00", "group_id must not be null"),
        (4, b"\x80\x00", "group_id must not be null"),
        (3, b"\x00\x02\xc3\x28", "not UTF-8"),
        (4, b"\x03\xc3\x28", "not UTF-8"),
        (4, b"\xff\xff\xff\xff\x0f", "string may have at most 32767"),
        (4, b"\x81\x80\x02", "group_id has 32768 bytes"),
        (4, b"\x80\x80\x02", "end inside"),
        (4, b"\xff\xff\xff\xff\xff", "longer than 5 bytes"),
        (3, b"\x7f\xffabc", "end inside"),
    ],
)
def test_a_bad_string_is_refused(version: int, wire: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=f"HeartbeatRequest v{version}: .*{complaint}"):
        decode(HeartbeatRequest, version, wire)


def test_a_nullable_string_may_be_null_but_not_shorter() -> None:
    wire = encode(HEARTBEAT, 3)
    assert decode(HeartbeatRequest, 3, wire).group_instance_id is None
    with pytest.raises(ProtocolViolation, match="group_instance_id has the negative length -2"):
        decode(HeartbeatRequest, 3, wire[:-2] + b"\xff\xfe")


@pytest.mark.parametrize(
    ("version", "wire", "complaint"),
    [
        (0, b"\xff\xff\xff\xff", "topics has the negative length -1"),
        (1, b"\xff\xff\xff\xfe", "topics has the negative length -2"),
        (1, b"\x7f\xff\xff\xff" + bytes(36), "announces 2147483647 elements, but only 36 bytes"),
        (1, b"\x10\x00\x00\x00" + bytes(36), "announces 268435456 elements"),
        (12, b"\xff\xff\xff\xff\x07" + bytes(35), "announces 2147483646 elements"),
        (12, b"\x80\x80\x80\x80\x01" + bytes(35), "announces 268435455 elements"),
    ],
)
def test_an_array_that_cannot_be_there_is_refused(
    version: int, wire: bytes, complaint: str
) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        decode(MetadataRequest, version, wire)


def test_a_last_string_that_runs_past_the_end_is_refused() -> None:
    wire = encode(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 0)
    with pytest.raises(ProtocolViolation, match="end inside"):
        decode(MetadataRequest, 0, wire[:-1])


def test_elements_of_arrays_in_arrays_and_unknown_tags_count_as_well() -> None:
    partition = ListOffsetsPartition(partition_index=0)
    topic = ListOffsetsTopic(name="t", partitions=[partition] * 10)
    wire = encode(ListOffsetsRequest(topics=[topic] * 10), 6)
    decode(ListOffsetsRequest, 6, wire, elements_max=110)
    with pytest.raises(TooManyElements):
        decode(ListOffsetsRequest, 6, wire, elements_max=109)
    tagged = encode(HEARTBEAT, 4)[:-1] + tags((7, b""), (8, b""))
    decode(HeartbeatRequest, 4, tagged, elements_max=2)
    with pytest.raises(TooManyElements):
        decode(HeartbeatRequest, 4, tagged, elements_max=1)
    indexes = encode(OffsetFetchRequest(topics=[OffsetFetchRequestTopic(partition_indexes=[1])]), 6)
    with pytest.raises(TooManyElements):
        decode(OffsetFetchRequest, 6, indexes, elements_max=1)


@struct
class Corner:
    """At least two bytes in a flexible version: its one field, and its tag section."""

    height: int = wire(int8, "0+")


@struct
class Shape:
    """A struct whose only field is a struct that may be null."""

    corner: Corner | None = wire(Corner, "0+", nullable="0+", default=None)


@message(versions="0-1", flexible="1+")
class Drawing:
    """A message with an array of such structs."""

    shapes: list[Shape] = wire(array(Shape), "0+")


@pytest.mark.parametrize(("version", "least_bytes"), [(0, 1), (1, 2)])
def test_a_null_struct_counts_one_byte_when_elements_are_announced(
    version: int, least_bytes: int
) -> None:
    """One for what may be null; in a flexible version one more for the tags of its owner."""
    nothing = encode(Drawing(shapes=[Shape()] * 3), version)
    assert decode(Drawing, version, nothing) == Drawing(shapes=[Shape()] * 3)
    some = encode(Drawing(shapes=[Shape(corner=Corner(height=7)), Shape()]), version)
    assert decode(Drawing, version, some).shapes[0].corner == Corner(height=7)
    count_bytes = 4 if version == 0 else 1
    announced = (4).to_bytes(4, "big") if version == 0 else b"\x05"
    for left in (4 * least_bytes - 1, 3 * least_bytes):
        with pytest.raises(ProtocolViolation, match=f"announces 4 elements, but only {left} bytes"):
            decode(Drawing, version, announced + nothing[count_bytes:][:1] * left)


def test_elements_that_take_no_bytes_are_our_own_mistake() -> None:
    @struct
    class Nothing:
        added: str = wire(string, "1+")

    @message(versions="0-1", flexible="none")
    class Void:
        items: list[Nothing] = wire(array(Nothing), "0+")

    assert decode(Void, 1, bytes(4)) == Void()
    with pytest.raises(AssertionError, match="elements of items take no bytes"):
        decode(Void, 0, bytes(4))
