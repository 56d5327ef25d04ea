"""Committed offsets are encoded by hand as the codec of the other records would encode them."""

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.groups.records import OffsetCommitted, from_bytes, to_bytes
from ottla.model import LeaderEpoch, Offset, TimestampMs, TopicPartition
from ottla.protocol.codec import encode
from ottla.protocol.schema import int32, int64, message, string, wire
from sizes import examples

LONG: Final = st.integers(-(2**63), 2**63 - 1)
INT: Final = st.integers(-(2**31), 2**31 - 1)
NAME: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COMMITTED: Final = st.builds(
    OffsetCommitted,
    group_id=NAME,
    tp=st.builds(TopicPartition, NAME, INT),
    offset=LONG.map(Offset),
    leader_epoch=INT.map(LeaderEpoch),
    metadata=NAME,
    committed_ms=LONG.map(TimestampMs),
)


@message(versions="1", flexible="none")
class Key:
    group: str = wire(string, "1")
    topic: str = wire(string, "1")
    partition: int = wire(int32, "1")


@message(versions="3", flexible="none")
class Value:
    offset: int = wire(int64, "3")
    leader_epoch: int = wire(int32, "3")
    metadata: str = wire(string, "3")
    commit_timestamp: int = wire(int64, "3")


@settings(max_examples=examples(200))
@given(COMMITTED)
def test_an_offset_is_written_as_kafka_does_and_read_back(committed: OffsetCommitted) -> None:
    key = Key(group=committed.group_id, topic=committed.tp.topic, partition=committed.tp.partition)
    value = Value(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
    )
    written = to_bytes(committed)
    assert written == (b"\0\1" + encode(key, 1), b"\0\3" + encode(value, 3))
    assert from_bytes(*written) == committed
