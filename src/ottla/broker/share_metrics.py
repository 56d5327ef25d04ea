"""Metrics of share groups: sessions, share partitions, lag; zeros until a member has fetched."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ottla.telemetry import Metric, MetricKind

_GAUGE: Final = MetricKind.GAUGE
_NAME_LENGTH_MAX: Final = 255  # of a group's id; a longer one is unreadable in a chart


class ShareCounts(NamedTuple):
    """Counts of a broker's share partitions."""

    sessions: int = 0
    partitions: int = 0
    acquired_records: int = 0
    lags: Sequence[tuple[str, str, int]] = ()  # group, topic, records that are not finished
    waiting_records: int = 0
    archiving_records: int = 0
    dead_letters: int = 0
    dead_letter_failures: int = 0
    ordered_records: int = 0


def collect_share_groups(counts: ShareCounts, *, series_max: int) -> Iterable[Metric]:
    yield Metric(
        "ottla_share_sessions",
        _GAUGE,
        "Share sessions: members of share groups that fetch from this broker.",
        (),
        [((), counts.sessions)],
    )
    yield Metric(
        "ottla_share_partitions",
        _GAUGE,
        "Partitions that members of share groups fetch, counted once for each group.",
        (),
        [((), counts.partitions)],
    )
    yield Metric(
        "ottla_share_records_acquired_total",
        MetricKind.COUNTER,
        "Records that members of share groups have acquired, each time one was.",
        (),
        [((), counts.acquired_records)],
    )
    yield Metric(
        "ottla_share_records_waiting",
        _GAUGE,
        "Records that were released and are not delivered again before their backoff is over.",
        (),
        [((), counts.waiting_records)],
    )
    yield Metric(
        "ottla_share_records_archiving",
        _GAUGE,
        "Records that will not be delivered again and whose dead letters are not written yet.",
        (),
        [((), counts.archiving_records)],
    )
    yield Metric(
        "ottla_dead_letters_total",
        MetricKind.COUNTER,
        "Dead letters of share groups that were written.",
        (),
        [((), counts.dead_letters)],
    )
    yield Metric(
        "ottla_dead_letter_failures_total",
        MetricKind.COUNTER,
        "Attempts to write dead letters that failed; the log says why.",
        (),
        [((), counts.dead_letter_failures)],
    )
    yield Metric(
        "ottla_share_records_ordered",
        _GAUGE,
        "Unfinished records whose keys are remembered, in groups with share.ordering=key.",
        (),
        [((), counts.ordered_records)],
    )
    lags = [lag for lag in counts.lags if len(lag[0]) <= _NAME_LENGTH_MAX]
    yield Metric(
        "ottla_share_group_lag",
        _GAUGE,
        "Records of a topic that a share group has not finished, of partitions its members fetch.",
        ("group", "topic"),
        [((group_id, topic), lag) for group_id, topic, lag in lags[:series_max]],
    )
