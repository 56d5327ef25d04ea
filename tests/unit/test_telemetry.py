"""Log lines with their fields, and metrics in Prometheus' format."""

import json
import logging

from ottla.telemetry import JsonFormatter, Metric, MetricKind, TextFormatter, exposition


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
