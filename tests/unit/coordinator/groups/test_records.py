"""Records of groups are what Kafka keeps in __consumer_offsets, byte for byte."""

import pytest

from ottla.coordinator.groups.records import (
    GroupDropped,
    GroupStored,
    OffsetCommitted,
    OffsetDropped,
    Record,
    StoredMember,
    from_bytes,
    to_bytes,
)
from ottla.coordinator.runtime.log_entries import UnreadableRecord
from ottla.model import LeaderEpoch, Offset, TimestampMs, TopicPartition

TP = TopicPartition("t", 3)
COMMITTED = OffsetCommitted(
    group_id="g",
    tp=TP,
    offset=Offset(5),
    leader_epoch=LeaderEpoch(2),
    metadata="m",
    committed_ms=TimestampMs(9),
)
STORED = GroupStored(
    group_id="g",
    protocol_type="consumer",
    generation=4,
    protocol="range",
    leader="a",
    changed_ms=TimestampMs(7),
    members=(
        StoredMember(
            member_id="a",
            instance_id="i",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=2,
            session_timeout_ms=1,
            subscription=b"s",
            assignment=b"x",
        ),
    ),
)


@pytest.mark.parametrize(
    "record", [COMMITTED, OffsetDropped("g", TP), STORED, GroupDropped("g")], ids=repr
)
def test_what_is_written_is_read(record: Record) -> None:
    assert from_bytes(*to_bytes(record)) == record


def test_an_offset_has_the_layout_of_kafka() -> None:
    key, value = to_bytes(COMMITTED)
    assert key.hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 03"
    assert value is not None
    assert value.hex(" ") == (
        "00 03 00 00 00 00 00 00 00 05 00 00 00 02 00 01 6d 00 00 00 00 00 00 00 09"
    )


def test_a_group_has_the_layout_of_kafka() -> None:
    key, value = to_bytes(STORED)
    assert key.hex(" ") == "00 02 00 01 67"
    assert value is not None
    assert value.hex(" ") == (
        "00 03"  # version
        " 00 08 63 6f 6e 73 75 6d 65 72"  # protocol type
        " 00 00 00 04"  # generation
        " 00 05 72 61 6e 67 65"  # protocol
        " 00 01 61"  # leader
        " 00 00 00 00 00 00 00 07"  # changed
        " 00 00 00 01 00 01 61 00 01 69 00 01 63 00 02 2f 68"  # member, instance, client, host
        " 00 00 00 02 00 00 00 01 00 00 00 01 73 00 00 00 01 78"
    )


def test_older_values_are_read() -> None:
    key, _ = to_bytes(COMMITTED)
    oldest = bytes.fromhex("0001 0000000000000005 0001 6d 0000000000000009 ffffffffffffffff")
    found = from_bytes(key, oldest)
    assert isinstance(found, OffsetCommitted)
    assert (found.offset, found.leader_epoch, found.metadata) == (5, -1, "m")


def test_kinds_of_records_that_come_later_are_not_for_us() -> None:
    assert from_bytes(b"\x00\x63whatever", b"") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\x00", b""),
        (b"\x00\x01\x00\x09", b""),
        (to_bytes(COMMITTED)[0], b"\x00\x63"),
        (to_bytes(COMMITTED)[0], b"\xff\xff"),
        (to_bytes(COMMITTED)[0], b"\x00\x03\x00"),
        (to_bytes(STORED)[0], b"\x00\x03\x00\x01\xff"),
    ],
)
def test_bytes_that_nobody_here_wrote_are_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        from_bytes(key, value)
