"""Structured logs, and metrics without cost on the hot path.

Rooms count in plain integers; these are collected and named only when Prometheus scrapes.
"""

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate
from typing import Final

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE: Final = re.compile(r'[^\s"]+')  # values that need no quotes


# Upper bounds of a histogram's buckets: from a response out of the page cache to a stuck disk.
BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

_BOUND_NAMES: Final = (*map(str, BOUNDS_S), "+Inf")


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


class Histogram:
    """Durations, counted by bucket."""

    __slots__ = ("bucket_counts", "sum_s")

    def __init__(self) -> None:
        self.bucket_counts = [0] * (len(BOUNDS_S) + 1)  # the last one has no upper bound
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self.bucket_counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        return sum(self.bucket_counts)


@dataclass(frozen=True, slots=True)
class HistogramMetric:
    """A metric whose samples are (label values, histogram)."""

    name: str
    doc: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], Histogram]]


AnyMetric = Metric | HistogramMetric
Collect = Callable[[], Iterable[AnyMetric]]


def exposition(metrics: Iterable[AnyMetric], *, with_process: bool = False) -> bytes:
    """Metrics in Prometheus' text format; with those that every process has, if asked for."""
    # Imported when first scraped: a broker that is not scraped does not need it.
    from prometheus_client import (  # noqa: PLC0415
        PROCESS_COLLECTOR,
        CollectorRegistry,
        generate_latest,
    )
    from prometheus_client import Metric as Family  # noqa: PLC0415
    from prometheus_client.core import (  # noqa: PLC0415
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families: list[Family] = []
    for metric in metrics:
        if isinstance(metric, HistogramMetric):
            histogram = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
            for labels, observed in metric.samples:
                counts = zip(_BOUND_NAMES, accumulate(observed.bucket_counts), strict=True)
                histogram.add_metric(labels, list(counts), observed.sum_s)
            families.append(histogram)
            continue
        make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.doc, labels=metric.labels)
        for labels, number in metric.samples:
            family.add_metric(labels, number)
        families.append(family)

    class Once(Collector):
        def collect(self) -> Iterable[Family]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    if with_process:
        registry.register(PROCESS_COLLECTOR)
    return generate_latest(registry)


class TextFormatter(logging.Formatter):
    """A line per event: time, level, logger, event, then its fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{_time_text(record)} {record.levelname.lower():7} {record.name} {record.getMessage()}"
        )
        for name, value in _extra_fields(record).items():
            text = _text(value)
            line += f" {name}={text if _BARE.fullmatch(text) else json.dumps(text)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """A JSON object per event, for log collectors; docs/operations.md lists its fields."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": _time_text(record),
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        extra = {name: _plain(value) for name, value in _extra_fields(record).items()}
        return json.dumps(event | {name: extra[name] for name in extra if name not in event})


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


def _time_text(record: logging.LogRecord) -> str:
    """When it happened, in local time with its distance from UTC (RFC 3339)."""
    utc = datetime.fromtimestamp(record.created, UTC)
    return utc.astimezone().isoformat(timespec="milliseconds")


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={inner}" for name, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
