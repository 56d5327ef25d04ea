"""A place in a log, as people write it."""

import time

import pytest

from ottla.client.positions import (
    AtOffset,
    AtTime,
    BeforeEnd,
    Edge,
    LogPosition,
    format_duration,
    format_local_time,
    format_time,
    parse_duration_ms,
    parse_log_position,
    parse_time,
)
from ottla.errors import UsageRefused
from ottla.model import Offset, TimestampMs

NOW_MS = TimestampMs(1_794_700_800_000)  # 2026-11-15T00:00Z
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Edge.BEGINNING),
        ("end", Edge.END),
        ("0", AtOffset(Offset(0))),
        ("42", AtOffset(Offset(42))),
        ("-2h", AtTime(TimestampMs(NOW_MS - 2 * HOUR_MS))),
        ("-30m", AtTime(TimestampMs(NOW_MS - HOUR_MS // 2))),
        ("-1d", AtTime(TimestampMs(NOW_MS - 24 * HOUR_MS))),
        ("-1w", AtTime(TimestampMs(NOW_MS - 7 * 24 * HOUR_MS))),
        ("-5s", AtTime(TimestampMs(NOW_MS - 5000))),
        ("-1h30m", AtTime(TimestampMs(NOW_MS - 3 * HOUR_MS // 2))),
        ("2026-11-15T00:00Z", AtTime(NOW_MS)),
        ("2026-11-15T01:00+01:00", AtTime(NOW_MS)),
        ("2026-11-15", AtTime(NOW_MS)),
        ("2026-11-15T00:00:00.250Z", AtTime(TimestampMs(NOW_MS + 250))),
    ],
)
def test_a_position_means_what_it_says(text: str, position: LogPosition) -> None:
    assert parse_log_position(text, NOW_MS) == position


def test_a_negative_number_counts_offsets_back_from_the_end() -> None:
    assert parse_log_position("-10", NOW_MS) == BeforeEnd(10)
    assert parse_log_position("-0", NOW_MS) == BeforeEnd(0)
    assert parse_log_position("-10s", NOW_MS) == AtTime(TimestampMs(NOW_MS - 10_000))


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775808"])
def test_an_offset_that_no_log_can_have_is_refused(text: str) -> None:
    with pytest.raises(UsageRefused, match="offset too large"):
        parse_log_position(text, NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-", "--2", "-2x", "2h", "1.5", "2026-13-01", "٣"]
)
def test_what_is_no_position_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageRefused, match="beginning, end, 42"):
        parse_log_position(text, NOW_MS)


def test_a_duration_beyond_all_time_is_refused() -> None:
    with pytest.raises(UsageRefused, match="duration too long"):
        parse_log_position("-99999999999999w", NOW_MS)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("90s", 90_000),
        (" 2h ", 2 * HOUR_MS),
        ("1d12h", 36 * HOUR_MS),
        ("1w1d1h1m1s1ms", (8 * 24 + 1) * HOUR_MS + 61_001),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 h", "2y", "1.5h", "PT2H", "2h!", "٣h"])
def test_what_is_no_span_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageRefused, match="write 90s"):
        parse_duration_ms(text)


def test_what_is_no_time_is_refused_with_an_example() -> None:
    assert parse_time("2026-11-15T00:00Z") == NOW_MS
    for text in ("", "-2h", "42", "end", "tomorrow"):
        with pytest.raises(UsageRefused, match="write 2026-11-15T00:00Z"):
            parse_time(text)


def test_a_position_before_1970_is_the_first_one_records_can_have() -> None:
    assert parse_log_position("-99999d", NOW_MS) == AtTime(TimestampMs(0))
    assert parse_log_position("1969-12-31", NOW_MS) == AtTime(TimestampMs(0))


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [(NOW_MS, "2026-11-15T00:00:00.000Z"), (0, "1970-01-01T00:00:00.000Z"), (2**62, str(2**62))],
)
def test_a_timestamp_is_printed_in_utc_or_as_its_number(timestamp_ms: int, text: str) -> None:
    assert format_time(TimestampMs(timestamp_ms)) == text


def test_a_printed_timestamp_reads_back() -> None:
    printed = format_time(TimestampMs(NOW_MS + 123))
    assert parse_log_position(printed, NOW_MS) == AtTime(TimestampMs(NOW_MS + 123))


def test_a_time_without_a_zone_is_utc_wherever_the_machine_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        found = parse_log_position("2026-11-15T00:00", NOW_MS)
    time.tzset()
    assert found == AtTime(NOW_MS)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0ms"),
        (7, "7ms"),
        (999, "999ms"),
        (1500, "1s"),
        (90_000, "1m30s"),
        (3_600_000, "1h"),
        (3_605_000, "1h5s"),
        (9_060_500, "2h31m"),
        (36 * 3_600_000, "1d12h"),
        (10 * 86_400_000, "1w3d"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text
    assert parse_duration_ms(text) <= duration_ms


def test_a_local_time_has_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "Europe/Prague")
        time.tzset()
        assert format_local_time(0) == "1970-01-01T01:00:00.000+01:00"
        assert format_local_time(1_794_974_725_761) == "2026-11-18T05:05:25.761+01:00"
        assert format_local_time(2**63 - 1) == str(2**63 - 1)
    finally:
        monkeypatch.undo()
        time.tzset()
