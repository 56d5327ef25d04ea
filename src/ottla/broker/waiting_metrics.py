"""Metrics of records that wait; zeros as long as no topic here has delay.enable."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.telemetry import Metric, MetricKind

_GAUGE: Final = MetricKind.GAUGE
_COUNTER: Final = MetricKind.COUNTER


class WaitingCounts(NamedTuple):
    """Counts of all records that wait in partitions led here."""

    partitions: int = 0
    loading: int = 0
    waiting: int = 0
    undecided: int = 0
    schedules: int = 0
    waiting_bytes: int = 0
    unreadable: int = 0
    released: int = 0
    cancelled: int = 0


def collect_waiting(counts: WaitingCounts) -> Iterable[Metric]:
    for name, kind, doc, value in (
        (
            "partitions",
            _GAUGE,
            "Partitions led here in which records may wait.",
            counts.partitions,
        ),
        (
            "partitions_loading",
            _GAUGE,
            "Those of them whose logs are still being read: nothing of theirs is released yet.",
            counts.loading,
        ),
        ("records", _GAUGE, "Records that wait in partitions led here.", counts.waiting),
        (
            "records_undecided",
            _GAUGE,
            "Records that will wait once their transactions are committed.",
            counts.undecided,
        ),
        ("schedules", _GAUGE, "Records among those that wait that come again.", counts.schedules),
        (
            "bytes",
            _GAUGE,
            "Bytes of records that wait, about; they do not count for retention.bytes.",
            counts.waiting_bytes,
        ),
        (
            "records_unreadable",
            _GAUGE,
            "Records that are due and cannot be read, for example because of a damaged disk.",
            counts.unreadable,
        ),
        (
            "released_total",
            _COUNTER,
            "Records that were released, also by earlier leaders as far as their logs say.",
            counts.released,
        ),
        (
            "cancelled_total",
            _COUNTER,
            "Cancels, also those before this broker led, as far as its logs say.",
            counts.cancelled,
        ),
    ):
        yield Metric(f"ottla_waiting_{name}", kind, doc, (), [((), value)])
