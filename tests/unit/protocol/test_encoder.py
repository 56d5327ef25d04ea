"""Encoding one message, byte for byte."""

import struct

import pytest

from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.classic_groups import HeartbeatRequest
from ottla.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")


def test_an_old_version_has_lengths_of_two_bytes_and_no_tags() -> None:
    assert encode(HEARTBEAT, 3).hex() == "000167" + "00000002" + "00016d" + "ffff"


def test_a_flexible_version_has_lengths_plus_one_as_varints_and_ends_with_tags() -> None:
    assert encode(HEARTBEAT, 4).hex() == "0267" + "00000002" + "026d" + "00" + "00"


def test_a_field_that_a_version_does_not_have_is_left_out() -> None:
    static = HeartbeatRequest(group_id="g", generation_id=2, member_id="m", group_instance_id="i")
    assert encode(static, 2) == encode(HEARTBEAT, 2)
    assert decode(HeartbeatRequest, 2, encode(static, 2)).group_instance_id is None


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


@pytest.mark.parametrize(
    ("size_bytes", "length"), [(0, "01"), (126, "7f"), (127, "8001"), (16_383, "808001")]
)
def test_a_flexible_length_takes_as_many_bytes_as_it_needs(size_bytes: int, length: str) -> None:
    wire = encode(HeartbeatRequest(group_id="g" * size_bytes), 4)
    assert wire == bytes.fromhex(length) + b"g" * size_bytes + bytes.fromhex("00000000 01 00 00")


def test_a_value_that_a_version_cannot_carry_is_our_own_mistake() -> None:
    with pytest.raises(struct.error):
        encode(HeartbeatRequest(generation_id=2**31), 3)
    with pytest.raises(TypeError):
        encode(MetadataRequest(topics=None), 0)  # null means "all topics" from version 1 on


def test_fixed_fields_stand_before_a_length_of_one_byte_or_two() -> None:
    for size_bytes, length in ((126, "7f"), (127, "8001")):
        wire = encode(HeartbeatRequest(generation_id=7, member_id="m" * size_bytes), 4)
        head = bytes.fromhex("01 00000007" + length)
        assert wire == head + b"m" * size_bytes + bytes.fromhex("00 00")
