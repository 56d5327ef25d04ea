"""Prometheus metrics of streams: totals and the last batch of each query."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.spark.progress import BatchDone
from ottla.telemetry import Metric, MetricKind


@dataclass(slots=True)
class _Query:
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    last: BatchDone | None = None


class StreamMetrics:
    """Counts batches in one thread; metrics are collected in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries = dict[str, _Query]()

    def note(self, batch: BatchDone) -> None:
        with self._lock:
            query = self._queries.setdefault(batch.query, _Query())
            query.batches += 1
            query.rows += batch.rows
            query.seconds += batch.duration_ms / 1000
            query.last = batch

    def totals(self) -> tuple[int, int]:
        """Batches and records of all queries."""
        with self._lock:
            queries = self._queries.values()
            return sum(one.batches for one in queries), sum(one.rows for one in queries)

    def collect(self) -> Iterable[Metric]:
        """The current value of every metric."""
        count, gauge = MetricKind.COUNTER, MetricKind.GAUGE
        names = ("query",)
        batches = Metric("ottla_pipeline_batches", count, "Micro-batches written.", names)
        rows = Metric("ottla_pipeline_rows", count, "Records read by them.", names)
        seconds = Metric("ottla_pipeline_batch_seconds", count, "Time they took together.", names)
        lag = Metric(
            "ottla_pipeline_lag", gauge, "Records in the topics beyond the last batch.", names
        )
        last = Metric(
            "ottla_pipeline_last_batch_seconds", gauge, "Time the last batch took.", names
        )
        with self._lock:
            for name, query in sorted(self._queries.items()):
                batches.samples.append(((name,), query.batches))
                rows.samples.append(((name,), query.rows))
                seconds.samples.append(((name,), query.seconds))
                if query.last is not None:
                    last.samples.append(((name,), query.last.duration_ms / 1000))
                    if query.last.lag is not None:
                        lag.samples.append(((name,), query.last.lag))
        return batches, rows, seconds, lag, last
