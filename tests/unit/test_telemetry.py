"""Log lines with their fields, and metrics in Prometheus' format."""

import json
import logging

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


def test_a_text_line_has_event_and_fields() -> None:
    line = TextFormatter().format(event(tp="orders-3", reason="no space"))
    assert line.endswith('warning ottla.storage retention failed tp=orders-3 reason="no space"')


def test_a_json_line_has_the_same_with_plain_values() -> None:
    fields = json.loads(JsonFormatter().format(event(tp=("orders", 3), count=2)))
    assert fields["event"] == "retention failed"
    assert (fields["level"], fields["room"]) == ("warning", "ottla.storage")
    assert (fields["tp"], fields["count"]) == ("('orders', 3)", 2)


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
