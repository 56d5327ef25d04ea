"""Indexes: lookups, Kafka's bytes, and files that are not believed."""

import pytest

from ottla.model import NO_TIMESTAMP, Offset, Position, ProducerId, TimestampMs
from ottla.storage.index import (
    AbortedTransaction,
    IndexDamaged,
    OffsetIndex,
    TimeIndex,
    decode_aborted,
    encode_aborted,
)


def offset_index() -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in [(9, 100), (19, 300), (500_000, 70_000)]:
        index.append(offset, Position(position))
    return index


def time_index() -> TimeIndex:
    index = TimeIndex()
    for timestamp_ms, offset in [(1000, 9), (1000, 12), (3000, 19)]:
        index.append(TimestampMs(timestamp_ms), offset)
    return index


ABORTED = [
    AbortedTransaction(ProducerId(7), Offset(10), Offset(20), Offset(15)),
    AbortedTransaction(ProducerId(8), Offset(15), Offset(30), Offset(31)),
]


def test_a_search_begins_at_the_last_batch_that_cannot_lie_behind() -> None:
    index = offset_index()
    assert index.at_or_below(8) is None
    assert index.at_or_below(9) == (9, 100)
    assert index.at_or_below(18) == (9, 100)
    assert index.at_or_below(10**9) == (500_000, 70_000)


def test_positions_are_looked_up_too() -> None:
    index = offset_index()
    assert [index.before_position(at) for at in (99, 100, 299, 10**6)] == [0, 100, 100, 70_000]


def test_truncating_forgets_what_lies_behind() -> None:
    index = offset_index()
    index.truncate(300)
    assert index.last() == (9, 100)
    index.truncate(0)
    assert index.last() is None


def test_the_offset_index_is_in_kafkas_format() -> None:
    data = offset_index().encode()
    assert data.hex(" ", 4) == ("00000009 00000064 00000013 0000012c 0007a120 00011170")
    assert OffsetIndex.decode(data, 70_001).encode() == data


@pytest.mark.parametrize(
    ("data", "size_bytes"),
    [
        (bytes(7), 100),
        (bytes(16), 100),  # blocks that were allocated but never written
        (bytes.fromhex("00000009000000640000000300000200"), 1000),
        (bytes.fromhex("00000009000000640000000a00000032"), 1000),
        (bytes.fromhex("ffffffff00000000"), 100),
        (bytes.fromhex("0000000900000064"), 100),
    ],
)
def test_an_offset_index_that_cannot_be_true_is_not_believed(data: bytes, size_bytes: int) -> None:
    with pytest.raises(IndexDamaged):
        OffsetIndex.decode(data, size_bytes)


def test_only_a_larger_timestamp_is_news() -> None:
    index = time_index()
    assert len(index) == 2
    assert index.last() == (3000, 19)
    assert TimeIndex().last() == (NO_TIMESTAMP, -1)


def test_a_search_by_time_begins_behind_everything_earlier() -> None:
    index = time_index()
    assert [index.below(TimestampMs(at)) for at in (1000, 1001, 3000, 3001)] == [-1, 9, 9, 19]


def test_the_time_index_is_in_kafkas_format() -> None:
    data = time_index().encode()
    assert data.hex() == "00000000000003e8000000090000000000000bb800000013"
    assert TimeIndex.decode(data, 20).encode() == data


def test_a_truncated_time_index_forgets_later_batches() -> None:
    index = time_index()
    index.truncate(19)
    assert index.last() == (1000, 9)


@pytest.mark.parametrize(
    "data",
    [
        bytes(11),
        bytes(24),
        bytes.fromhex("00000000000003e8000000090000000000000bb800000008"),
        bytes.fromhex("00000000000003e800000014"),
        bytes.fromhex("00000000000003e8ffffffff"),
    ],
)
def test_a_time_index_that_cannot_be_true_is_not_believed(data: bytes) -> None:
    with pytest.raises(IndexDamaged):
        TimeIndex.decode(data, 20)


def test_aborted_transactions_are_in_kafkas_format() -> None:
    data = encode_aborted(ABORTED)
    assert data[:34].hex() == (
        "00000000000000000007000000000000000a0000000000000014000000000000000f"
    )
    assert decode_aborted(data, Offset(5)) == ABORTED


@pytest.mark.parametrize(
    "data",
    [
        encode_aborted(ABORTED)[:-1],
        encode_aborted(ABORTED[::-1]),
        b"\0\1" + encode_aborted(ABORTED)[2:],
        bytes(34),
    ],
)
def test_aborted_transactions_that_cannot_be_true_are_not_believed(data: bytes) -> None:
    with pytest.raises(IndexDamaged):
        decode_aborted(data, Offset(5))
