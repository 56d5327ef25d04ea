"""Filters leave out what cannot hold a wanted record, and never more."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ottla.model import TimestampMs
from ottla.spark.pushdown import RecordBounds, bounds_of_filters

NOON = datetime(2026, 11, 15, 12, 0, 0, 1500, tzinfo=UTC)
NOON_MS = TimestampMs(1_794_744_000_001)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("topic",), "a")], RecordBounds(topics=frozenset({"a"}))),
        (
            [In(("topic",), ("a", "b")), EqualTo(("topic",), "b")],
            RecordBounds(topics=frozenset({"b"})),
        ),
        ([In(("partition",), (1, 2))], RecordBounds(partitions=frozenset({1, 2}))),
        ([EqualTo(("offset",), 5)], RecordBounds(offset_min=5, offset_end=6)),
        (
            [GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9)],
            RecordBounds(offset_min=6, offset_end=10),
        ),
        (
            [GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9)],
            RecordBounds(offset_min=5, offset_end=9),
        ),
        ([GreaterThan(("timestamp",), NOON)], RecordBounds(since_ms=NOON_MS)),
        ([LessThan(("timestamp",), NOON)], RecordBounds()),
        ([EqualTo(("timestamp",), NOON.replace(tzinfo=None))], RecordBounds()),
        ([IsNotNull(("offset",)), EqualTo(("key",), b"k")], RecordBounds()),
        ([EqualTo(("value", "id"), 5)], RecordBounds()),
    ],
)
def test_filters_on_places_narrow(filters: list[Filter], expected: RecordBounds) -> None:
    assert bounds_of_filters(filters) == expected
