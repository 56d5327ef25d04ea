"""The rows, in the order in which they run and are printed."""

from bench.measures import Metric, Row
from bench.rows import (
    commits,
    compaction,
    durability,
    footprint,
    heartbeats,
    latency,
    partitions,
    queues,
    replay,
    requests,
    spark,
    takeover,
    throughput,
    transactions,
)

ROWS: tuple[Row, ...] = (
    throughput.ROW,
    requests.ROW,
    latency.ROW,
    footprint.ROW,
    durability.ROW,
    commits.ROW,
    heartbeats.ROW,
    takeover.ROW,
    compaction.ROW,
    replay.ROW,
    transactions.ROW,
    queues.ROW,
    partitions.ROW,
    spark.ROW,
)
METRICS: tuple[Metric, ...] = tuple(metric for row in ROWS for metric in row.metrics)
