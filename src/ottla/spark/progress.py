"""Progress of streams: one value for each micro-batch, from Spark's progress reports."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A completed micro-batch. `lag` is the number of records in its topics beyond it; None for
    other sources."""

    query: str
    batch_id: int
    rows: int
    lag: int | None
    duration_ms: int


def batch_done(progress: Mapping[str, Any]) -> BatchDone:
    """Parse one progress report of Spark."""
    lags = [lag_of(source) for source in progress["sources"]]
    known = [lag for lag in lags if lag is not None]
    return BatchDone(
        query=progress["name"] or progress["id"],
        batch_id=progress["batchId"],
        rows=progress["numInputRows"],
        lag=sum(known) if known else None,
        duration_ms=progress["durationMs"].get("triggerExecution", 0),
    )


def source_metrics(source: Mapping[str, Any]) -> dict[str, str]:
    """The metrics of a source of a progress report, as Spark's Kafka connector has them.

    Spark does not let Python sources report metrics; the offsets of a report have what is needed.
    Empty for other sources.
    """
    behind = _offsets_behind(source)
    if not behind:
        return {}
    return {
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "minOffsetsBehindLatest": str(min(behind)),
    }


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Offsets between the end of a batch and the end of its topics; None for other sources."""
    behind = _offsets_behind(source)
    return None if behind is None else sum(behind)


def _offsets_behind(source: Mapping[str, Any]) -> list[int] | None:
    """Offsets of each partition that are not read yet; None for other sources."""
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if end is None or latest is None:
        return None
    return [
        max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    ]


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """Offsets by topic and partition; Spark nests them as JSON or as a string of JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        return None
    return found


class BatchListener(StreamingQueryListener):
    """Calls `on_batch` for every micro-batch, in a Spark thread."""

    def __init__(self, on_batch: Callable[[BatchDone], None]) -> None:
        self._on_batch = on_batch
        self._ended = threading.Condition()
        self._ended_runs = set[str]()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """No batch is complete yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._on_batch(batch_done(json.loads(event.progress.json)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._ended:
            self._ended_runs.add(str(event.runId))
            self._ended.notify_all()

    def wait_ended(self, run_id: str, timeout_s: float) -> bool:
        """True once the end of a run was reported; False after the timeout. Reports come late."""
        with self._ended:
            return self._ended.wait_for(lambda: run_id in self._ended_runs, timeout_s)
