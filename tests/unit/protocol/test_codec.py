import traceback
import tracemalloc

import pytest

from fakes.layouts import Layout, all_layouts
from fakes.random_messages import RandomMessages
from ottla.errors import ErrorCode, ProtocolViolation, TooManyElements
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
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from ottla.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.messages.sasl import SaslAuthenticateRequest
from ottla.protocol.primitives import TAGGED_FIELDS_MAX, write_unsigned_varint

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


def test_an_old_version_has_lengths_of_two_bytes_and_no_tags() -> None:
    assert encode(HEARTBEAT, 3).hex() == "000167" + "00000002" + "00016d" + "ffff"


def test_a_flexible_version_has_lengths_plus_one_as_varints_and_ends_with_tags() -> None:
    assert encode(HEARTBEAT, 4).hex() == "0267" + "00000002" + "026d" + "00" + "00"


def test_encode_into_appends_behind_a_header() -> None:
    out = bytearray(b"header")
    encode_into(out, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert out == b"header\x00\x1b"


def test_a_field_that_a_version_does_not_have_is_left_out() -> None:
    static = HeartbeatRequest(group_id="g", generation_id=2, member_id="m", group_instance_id="i")
    assert encode(static, 2) == encode(HEARTBEAT, 2)
    assert decode(HeartbeatRequest, 2, encode(static, 2)).group_instance_id is None


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


def test_tagged_fields_that_hold_their_default_are_left_out() -> None:
    def answer(leader: LeaderIdAndEpoch) -> bytes:
        partition = PartitionProduceResponse(current_leader=leader)
        topic = TopicProduceResponse(name="t", partition_responses=[partition])
        return encode(ProduceResponse(responses=[topic]), 10)

    silent = answer(LeaderIdAndEpoch())
    assert len(answer(LeaderIdAndEpoch(leader_id=3))) == len(silent) + 2 + 9


def test_tagged_fields_are_written_in_ascending_order() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=5, zk_migration_ready=True)
    assert encode(response, 3)[-14:].hex() == "02" + "0108" + "0000000000000005" + "0301" + "01"


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


@pytest.mark.parametrize("version", [11, 12])
def test_any_buffer_can_be_written_as_records(version: int) -> None:
    def answer(records: bytes | bytearray | memoryview | None) -> bytes:
        partition = FetchPartitionResponse(records=records)
        return encode(
            FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])]),
            version,
        )

    assert answer(b"abc") == answer(bytearray(b"abc")) == answer(memoryview(b"abc"))
    assert answer(None) != answer(b"")


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


def test_a_version_that_does_not_exist_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="HeartbeatRequest has no version 5"):
        encode(HEARTBEAT, 5)


def test_the_written_code_can_be_read() -> None:
    assert "unpack_from_ih" in decoder_source(HeartbeatRequest, 3)
    assert "pack_ih" in encoder_source(HeartbeatRequest, 3)


def test_a_traceback_shows_the_line_that_failed() -> None:
    with pytest.raises(AttributeError) as failed:
        encode(HeartbeatRequest(group_id=None), 3)  # type: ignore[arg-type]  # the mistake
    assert "content1 = content1.encode()" in "".join(traceback.format_exception(failed.value))


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
