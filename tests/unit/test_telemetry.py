"""Log lines with their fields, and metrics in Prometheus' format."""

import json
import logging
import time
from collections.abc import Iterator

import pytest

from ottla.telemetry import (
    BOUNDS_S,
    Histogram,
    HistogramMetric,
    JsonFormatter,
    Metric,
    MetricKind,
    TextFormatter,
    exposition,
)


def event(**fields: object) -> logging.LogRecord:
    record = logging.LogRecord(
        "ottla.storage", logging.WARNING, "", 0, "retention failed", (), None
    )
    record.__dict__.update(fields)
    return record


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's time zone during a test."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_a_time_has_its_zone_in_both_formats(zone: str) -> None:
    record = event(created=1_794_928_323.004)
    local = {
        "UTC": "2026-11-17T15:12:03.004+00:00",
        "Asia/Kolkata": "2026-11-17T20:42:03.004+05:30",
        "America/St_Johns": "2026-11-17T11:42:03.004-03:30",
    }[zone]
    assert TextFormatter().format(record).startswith(f"{local} warning ")
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["time"], fields["time_ms"]) == (local, 1_794_928_323_004)


def test_a_text_line_has_event_and_fields() -> None:
    line = TextFormatter().format(event(tp="orders-3", reason="no space"))
    assert line.endswith('warning ottla.storage retention failed tp=orders-3 reason="no space"')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ("a\nb", '"a\\nb"'),
        ('say "x"', '"say \\"x\\""'),
        ({"a": "1", "b": "2"}, '"a=1, b=2"'),
        (True, "true"),
        (None, "None"),
    ],
)
def test_a_value_is_one_word_or_quoted(value: object, text: str) -> None:
    line = TextFormatter().format(event(value=value))
    assert line.endswith(f" retention failed value={text}")


def test_a_json_line_has_the_same_with_plain_values() -> None:
    fields = json.loads(JsonFormatter().format(event(tp=("orders", 3), count=2, on={"a": (1,)})))
    assert fields["event"] == "retention failed"
    assert (fields["level"], fields["logger"]) == ("warning", "ottla.storage")
    assert (fields["tp"], fields["count"], fields["on"]) == ("('orders', 3)", 2, {"a": "(1,)"})


def test_a_field_of_an_event_replaces_none_of_every_line() -> None:
    fields = json.loads(JsonFormatter().format(event(level="x", event="y", time="z", tp="t-0")))
    assert (fields["level"], fields["event"], fields["tp"]) == (
        "warning",
        "retention failed",
        "t-0",
    )
    assert fields["time"] != "z"


def test_a_traceback_is_one_field_or_lines_of_its_own() -> None:
    try:
        raise KeyError("planted")
    except KeyError as problem:
        record = event(exc_info=(KeyError, problem, problem.__traceback__))
    fields = json.loads(JsonFormatter().format(record))
    assert fields["traceback"].endswith("KeyError: 'planted'")
    first, second, *_ = TextFormatter().format(record).splitlines()
    assert first.endswith("retention failed")
    assert second.startswith("Traceback")


def test_metrics_are_exposed_with_their_labels() -> None:
    metric = Metric(
        "ottla_records", MetricKind.COUNTER, "Records.", ("topic",), [(("orders",), 3.0)]
    )
    page = exposition([metric]).decode()
    assert "# TYPE ottla_records_total counter" in page
    assert 'ottla_records_total{topic="orders"} 3.0' in page


def test_a_histogram_is_exposed_with_cumulative_buckets() -> None:
    histogram = Histogram()
    for duration_s in (0.0001, 0.0002, 0.3, 99.0):
        histogram.observe(duration_s)
    metric = HistogramMetric("ottla_wait_seconds", "Waits.", ("api",), [(("fetch",), histogram)])
    page = exposition([metric]).decode()
    assert "# TYPE ottla_wait_seconds histogram" in page
    buckets = [line.split()[1] for line in page.splitlines() if "_bucket{" in line]
    assert len(buckets) == len(BOUNDS_S) + 1
    for bound, count in (("0.0001", 1), ("0.00025", 2), ("0.25", 2), ("0.5", 3), ("10.0", 3)):
        assert f'ottla_wait_seconds_bucket{{api="fetch",le="{bound}"}} {count}.0' in page
    assert 'ottla_wait_seconds_bucket{api="fetch",le="+Inf"} 4.0' in page
    assert 'ottla_wait_seconds_count{api="fetch"} 4.0' in page
    assert 'ottla_wait_seconds_sum{api="fetch"} 99.3003' in page


def test_only_a_page_of_a_process_has_the_metrics_of_one() -> None:
    names = ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds")
    page = exposition([], with_process=True).decode()
    assert all(f"\nprocess_{name} " in page for name in names)
    assert exposition([]) == b""
