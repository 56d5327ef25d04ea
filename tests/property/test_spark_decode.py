"""Decoding in bulk says what opening every record by itself says."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.client.partitions import Fetched
from ottla.errors import ApiError
from ottla.model import (
    LeaderEpoch,
    Offset,
    OffsetRange,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import (
    Marker,
    MarkerKind,
    Record,
    build_batch,
    build_marker,
    read_header,
    records,
    stamp,
    stamp_time,
)
from ottla.records.compression import Codec

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from ottla.spark import decode

TP = TopicPartition("orders", 3)
letters = st.builds(
    Record,
    timestamp_ms=st.integers(0, 2**42).map(TimestampMs),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3
    ).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytearray]:
    """Batches as they lie one behind the other in a partition, with gaps between some."""
    batches, at = [], draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(1, 5))):
        batch = build_batch(
            draw(st.lists(letters, min_size=1, max_size=8)), codec=draw(st.sampled_from(Codec))
        )
        if draw(st.booleans()):
            stamp_time(batch, TimestampMs(draw(st.integers(0, 2**42))))
        stamp(batch, Offset(at), LeaderEpoch(0))
        batches.append(batch)
        at = read_header(batch).next_offset + draw(st.sampled_from([0, 0, 5]))
    return batches


def rows_of(found: decode.LocatedRecords) -> list[dict[str, Any]]:
    """The rows of all columns together."""
    columns = {name: make(found).to_pylist() for name, make in decode.COLUMNS.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def expected(batches: list[bytearray], wanted: OffsetRange) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestampType": int(read_header(batch).is_log_append_time),
            "headers": [{"key": name, "value": content} for name, content in record.headers]
            or None,
        }
        for batch in batches
        for record in records(batch)
        if wanted.start <= record.offset < wanted.end
    ]


@given(logs(), st.data())
def test_columns_hold_what_the_records_say(batches: list[bytearray], data: st.DataObject) -> None:
    end = read_header(batches[-1]).next_offset + 3
    start = data.draw(st.integers(0, end))
    wanted = OffsetRange(Offset(start), Offset(data.draw(st.integers(start, end))))
    fetched = Fetched(b"".join(batches), (), Offset(end))
    found, position = decode.Decoder().locate(TP, fetched, wanted)
    rows = rows_of(found)
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    assert rows == expected(batches, wanted)
    assert position >= min(wanted.end, read_header(batches[-1]).next_offset)
    pieces = [row for part in found.slices(2, 100) for row in rows_of(part)]
    assert [row["offset"] for row in pieces] == [row["offset"] for row in rows]


@given(logs(), st.data())
def test_damage_is_refused_or_changes_nothing(
    batches: list[bytearray], data: st.DataObject
) -> None:
    damaged = bytearray(b"".join(batches))
    at = data.draw(st.integers(12, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    wanted = OffsetRange(Offset(0), Offset(2**40))
    try:
        found, _ = decode.Decoder().locate(TP, Fetched(bytes(damaged), (), Offset(0)), wanted)
        rows = rows_of(found)
    except ApiError:
        return
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    # Only offset, length and leader epoch lie outside of the CRC.
    assert len(rows) <= len(expected(batches, wanted))


def transaction(at: int, value: bytes) -> bytearray:
    batch = build_batch(
        [Record(timestamp_ms=TimestampMs(1), value=value)],
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(0),
        base_sequence=Sequence(at),
        is_transactional=True,
    )
    stamp(batch, Offset(at), LeaderEpoch(0))
    return batch


def marker(at: int, kind: MarkerKind) -> bytearray:
    batch = build_marker(
        Marker(kind, 0),
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(0),
        timestamp_ms=TimestampMs(1),
    )
    stamp(batch, Offset(at), LeaderEpoch(0))
    return batch


def test_aborted_transactions_and_markers_are_left_out() -> None:
    log = [
        transaction(0, b"void"),
        marker(1, MarkerKind.ABORT),
        transaction(2, b"kept"),
        marker(3, MarkerKind.COMMIT),
    ]
    fetched = Fetched(b"".join(log), ((Offset(0), ProducerId(7)),), Offset(4))
    found, position = decode.Decoder().locate(TP, fetched, OffsetRange(Offset(0), Offset(4)))
    assert [row["value"] for row in rows_of(found)] == [b"kept"]
    assert position == 4


def test_a_range_whose_end_fell_to_compaction_is_read_to_its_end() -> None:
    late = build_batch([Record(timestamp_ms=TimestampMs(1))])
    stamp(late, Offset(20), LeaderEpoch(0))
    wanted = OffsetRange(Offset(3), Offset(10))
    found, position = decode.Decoder().locate(TP, Fetched(late, (), Offset(21)), wanted)
    assert (len(found), position) == (0, 10)


def test_more_than_fits_at_once_is_read_on_from_the_first_batch_that_did_not() -> None:
    value = bytes(decode.SOURCE_BYTES_MAX // 2 + 1)
    batches = list[bytearray]()
    for at in range(3):
        batch = build_batch([Record(timestamp_ms=TimestampMs(0), value=value)], codec=Codec.ZSTD)
        stamp(batch, Offset(at), LeaderEpoch(0))
        batches.append(batch)
    fetched = Fetched(b"".join(batches), (), Offset(3))
    found, position = decode.Decoder().locate(TP, fetched, OffsetRange(Offset(0), Offset(3)))
    assert (len(found), position) == (2, 2)
