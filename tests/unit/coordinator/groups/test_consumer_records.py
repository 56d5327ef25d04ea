"""What is written down about a consumer group, byte for byte as Kafka reads it."""

import pytest

from ottla.coordinator.groups.consumer_records import (
    ClassicPart,
    ConsumerRecord,
    CurrentDropped,
    CurrentSet,
    EpochDropped,
    EpochSet,
    MemberDropped,
    MemberState,
    MemberStored,
    PatternDropped,
    PatternResolved,
    TargetDropped,
    TargetEpochDropped,
    TargetEpochSet,
    TargetSet,
)
from ottla.coordinator.groups.records import from_bytes, to_bytes
from ottla.coordinator.groups.topics import IdPartition
from ottla.coordinator.runtime.log_entries import UnreadableRecord
from ottla.model import TimestampMs, Uuid

T = Uuid(bytes(range(16)))
P0, P3 = IdPartition(T, 0), IdPartition(T, 3)
MEMBER = MemberStored(
    group_id="g",
    member_id="m",
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/h",
    topics=("t", "u"),
    pattern="x.*",
    rebalance_timeout_ms=5,
    assignor="range",
    classic=ClassicPart(6, (("range", b"s"),)),
)
MEMBER_VALUE = (
    "0000 02 69 02 72 02 63 03 2f68 03 02 74 02 75 04 782e2a 00000005 06 72616e6765"
    " 01 00 10 01 00000006 02 06 72616e6765 02 73 00 00"
)
RECORDS: list[tuple[ConsumerRecord, str, str]] = [
    (EpochSet(group_id="g", epoch=3), "0003 0001 67", "0000 00000003 00"),
    (
        EpochSet(group_id="g", epoch=3, fingerprint=-2),
        "0003 0001 67",
        "0000 00000003 01 00 08 fffffffffffffffe",
    ),
    (
        MEMBER,
        "0005 0001 67 0001 6d",
        MEMBER_VALUE,
    ),
    (TargetEpochSet("g", 4), "0006 0001 67", "0000 00000004 00"),
    (
        TargetSet("g", "m", frozenset({P0, P3})),
        "0007 0001 67 0001 6d",
        f"0000 02 {T.hex()} 03 00000000 00000003 00 00",
    ),
    (
        CurrentSet(
            group_id="g",
            member_id="m",
            epoch=5,
            previous_epoch=4,
            state=MemberState.UNREVOKED,
            assigned=frozenset({P0}),
            revoking=frozenset({P3}),
        ),
        "0008 0001 67 0001 6d",
        f"0000 00000005 00000004 01 02 {T.hex()} 02 00000000 00 02 {T.hex()} 02 00000003 00 00",
    ),
    (
        PatternResolved(
            group_id="g", pattern="x.*", topics=("x1",), version=1, resolved_ms=TimestampMs(2)
        ),
        "0010 0001 67 0003 782e2a",
        "0000 02 03 7831 0000000000000001 0000000000000002 00",
    ),
]
TOMBSTONES: list[tuple[ConsumerRecord, str]] = [
    (EpochDropped("g"), "0003 0001 67"),
    (MemberDropped("g", "m"), "0005 0001 67 0001 6d"),
    (TargetEpochDropped("g"), "0006 0001 67"),
    (TargetDropped("g", "m"), "0007 0001 67 0001 6d"),
    (CurrentDropped("g", "m"), "0008 0001 67 0001 6d"),
    (PatternDropped("g", "x"), "0010 0001 67 0001 78"),
]


@pytest.mark.parametrize(
    ("record", "key", "value"), RECORDS, ids=[type(row[0]).__name__ for row in RECORDS]
)
def test_records_are_written_and_read(record: ConsumerRecord, key: str, value: str) -> None:
    written = to_bytes(record)
    assert written == (bytes.fromhex(key), bytes.fromhex(value))
    assert from_bytes(*written) == record


@pytest.mark.parametrize(("record", "key"), TOMBSTONES, ids=lambda row: type(row).__name__)
def test_tombstones_have_no_value(record: ConsumerRecord, key: str) -> None:
    assert to_bytes(record) == (bytes.fromhex(key), None)
    assert from_bytes(bytes.fromhex(key), None) == record


def test_a_member_of_the_newer_protocol_has_no_older_part() -> None:
    member = MemberStored(group_id="g", member_id="m", topics=("t",))
    assert from_bytes(*to_bytes(member)) == member


def test_a_state_that_comes_later_is_not_known() -> None:
    key, value = to_bytes(CurrentSet(group_id="g", member_id="m"))
    assert value is not None
    found = from_bytes(key, value[:10] + b"\x09" + value[11:])
    assert isinstance(found, CurrentSet)
    assert found.state is MemberState.UNKNOWN


def test_what_kafka_4_0_kept_about_topics_is_not_needed() -> None:
    assert from_bytes(bytes.fromhex("0004 0001 67"), b"\x00\x00\x01\x00") is None


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x01\x00", b"\x00\x00\x00"])
def test_values_that_nobody_wrote_are_refused(value: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        from_bytes(bytes.fromhex("0003 0001 67"), value)
