"""Structured logs, and metrics without cost on the hot path.

Rooms count in plain integers; these are collected and named only when Prometheus scrapes.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class MetricKind(StrEnum):
    COUNTER = "counter"  # only rises
    GAUGE = "gauge"  # a current value


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: samples are (label values, number)."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[tuple[str, ...], float]] = field(default_factory=list)


Collect = Callable[[], Iterable[Metric]]


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Metrics in Prometheus' text format."""
    # Imported when first scraped: a broker that is not scraped does not need it.
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
    from prometheus_client.core import (  # noqa: PLC0415
        CounterMetricFamily,
        GaugeMetricFamily,
    )
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families = []
    for metric in metrics:
        make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.doc, labels=metric.labels)
        for labels, number in metric.samples:
            family.add_metric(labels, number)
        families.append(family)

    class Once(Collector):
        def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


class TextFormatter(logging.Formatter):
    """A line per event: time, level, logger, event, then its fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}"
            f" {record.levelname.lower():7} {record.name} {record.getMessage()}"
        )
        for name, value in _extra_fields(record).items():
            text = str(value)
            line += f" {name}={json.dumps(text) if ' ' in text else text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """A JSON object per event, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "room": record.name,
            "event": record.getMessage(),
        }
        event |= {name: _plain(value) for name, value in _extra_fields(record).items()}
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event)


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send the log events of all rooms to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger("ottla")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
