"""Which timestamp a batch's header should say, and when its records are asked."""

import struct

import pytest

from fakes import build
from ottla.config import TopicConfig
from ottla.errors import InvalidTimestamp
from ottla.model import TimestampMs
from ottla.records.batch import (
    MAX_TIMESTAMP_AT,
    Record,
    build_batch,
    check_batch,
    read_header,
    stamp_max_timestamp,
)
from ottla.records.compression import Codec
from ottla.records.timestamps import checked_max_timestamp, is_header_trusted

NOW_MS = build.NOW_MS
DEFAULT = TopicConfig()
LIMITED = TopicConfig(timestamp_before_max_ms=10_000)


def batch_of(*timestamps_ms: int, says_ms: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    """A batch with these record timestamps, whose header says another largest one if asked to."""
    records = [Record(timestamp_ms=TimestampMs(one), value=b"v") for one in timestamps_ms]
    batch = build_batch(records, codec=codec)
    if says_ms is not None:
        stamp_max_timestamp(batch, says_ms)
    return bytes(batch)


def checked(batch: bytes, config: TopicConfig = DEFAULT) -> int:
    return checked_max_timestamp(batch, check_batch(batch), config, NOW_MS)


@pytest.mark.parametrize(
    ("timestamps_ms", "says_ms", "expected_ms"),
    [
        ([-1], 0, -1),  # as librdkafka writes it
        ([-1, -1, -1], 0, -1),
        ([-1, NOW_MS], NOW_MS, NOW_MS),
        ([NOW_MS, -1], None, NOW_MS),
        ([-5], 0, -1),
        ([-5, -1], None, -1),
        ([0], None, 0),
        ([1], None, 1),
        ([NOW_MS, NOW_MS + 5], NOW_MS - 1, NOW_MS + 5),
        ([NOW_MS, NOW_MS + 5], -1, NOW_MS + 5),
        ([NOW_MS], NOW_MS + 10**12, NOW_MS),
        ([NOW_MS], 2**63 - 1, NOW_MS),
        ([NOW_MS], -(2**63), NOW_MS),
    ],
)
@pytest.mark.parametrize("codec", Codec)
def test_a_header_that_cannot_be_right_is_replaced_by_what_the_records_say(
    timestamps_ms: list[int], says_ms: int | None, expected_ms: int, codec: Codec
) -> None:
    assert checked(batch_of(*timestamps_ms, says_ms=says_ms, codec=codec)) == expected_ms


@pytest.mark.parametrize("timestamp_ms", [1, NOW_MS - 10**9, NOW_MS, NOW_MS + 3_600_000])
def test_a_plausible_header_is_header_trusted_and_no_record_is_read(timestamp_ms: int) -> None:
    batch = bytearray(batch_of(timestamp_ms))
    del batch[61:]  # there are no records to be read
    assert is_header_trusted(read_header(batch), DEFAULT, NOW_MS)
    assert checked_max_timestamp(batch, read_header(batch), DEFAULT, NOW_MS) == timestamp_ms


def test_a_record_of_the_future_is_refused_wherever_it_is() -> None:
    late_ms = NOW_MS + 3_600_001
    for batch in (batch_of(late_ms), batch_of(NOW_MS, late_ms, says_ms=-1)):
        with pytest.raises(InvalidTimestamp, match=str(late_ms)):
            checked(batch)


def test_a_limit_of_age_is_for_every_record_that_has_a_time() -> None:
    assert checked(batch_of(NOW_MS - 10_000), LIMITED) == NOW_MS - 10_000
    assert checked(batch_of(-1, NOW_MS), LIMITED) == NOW_MS
    for batch in (batch_of(NOW_MS, NOW_MS - 10_001), batch_of(NOW_MS, -2), batch_of(0)):
        with pytest.raises(InvalidTimestamp):
            checked(batch, LIMITED)


def test_a_corrected_header_has_a_true_checksum() -> None:
    batch = bytearray(batch_of(-1, says_ms=0))
    assert struct.unpack_from(">q", batch, MAX_TIMESTAMP_AT) == (0,)
    stamp_max_timestamp(batch, -1)
    assert check_batch(batch).max_timestamp_ms == -1
