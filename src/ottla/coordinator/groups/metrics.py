"""Metrics of groups, collected from their shards: states, members, lag."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ottla.coordinator.groups.descriptions import GroupSummary
from ottla.coordinator.groups.groups import Groups
from ottla.model import Offset, TopicPartition
from ottla.replication.replicas import Replicas
from ottla.telemetry import Metric, MetricKind

Sample = tuple[tuple[str, ...], float]

_GAUGE: Final = MetricKind.GAUGE
_NAME_LENGTH_MAX: Final = 255  # of a group's id; a longer one is unreadable in a chart


class _Budget:
    """The number of series that may still be shown: any client can make groups, of any name."""

    def __init__(self, series_max: int) -> None:
        self._left_count = series_max
        self.left_out_count = 0

    def take(self, samples: Sequence[Sample]) -> list[Sample]:
        named = [sample for sample in samples if len(sample[0][0]) <= _NAME_LENGTH_MAX]
        taken = named[: self._left_count]
        self._left_count -= len(taken)
        self.left_out_count += len(samples) - len(taken)
        return taken


def collect_groups(
    shards: Sequence[Groups], replicas: Replicas, *, series_max: int, with_partitions: bool
) -> Iterable[Metric]:
    """Metrics of all groups: the coarse ones first, so that a full page keeps these.

    Lag is counted against the high watermark, and only of partitions that are led here.
    """
    budget = _Budget(series_max)
    groups = sorted(summary for shard in shards for summary in shard.summaries())
    yield from _states(groups, budget)
    committed = sorted(
        (group_id, tp, record.offset)
        for shard in shards
        for group_id, offsets in shard.offsets.by_group.items()
        for tp, record in offsets.items()
    )
    lags = [
        (group_id, tp, lag)
        for group_id, tp, offset in committed
        if (lag := _lag(replicas, tp, offset)) is not None
    ]
    yield Metric(
        "ottla_group_topic_lag",
        _GAUGE,
        "Records of a topic that a group has not committed yet, of all partitions together.",
        ("group", "topic"),
        budget.take(_sums(lags)),
    )
    if with_partitions:
        names = ("group", "topic", "partition")
        yield Metric(
            "ottla_group_lag",
            _GAUGE,
            "Records between what a group has committed and the high watermark.",
            names,
            budget.take([_of_partition(*item) for item in lags]),
        )
        yield Metric(
            "ottla_group_committed_offset",
            _GAUGE,
            "The offset a group would go on from.",
            names,
            budget.take([_of_partition(*item) for item in committed]),
        )
    yield Metric(
        "ottla_group_series_left_out",
        _GAUGE,
        "Series of groups that group.metrics.series.max keeps off this page.",
        (),
        [((), budget.left_out_count)],
    )


def _states(groups: Sequence[GroupSummary], budget: _Budget) -> Iterable[Metric]:
    by_state = Counter(group.state for group in groups)
    yield Metric(
        "ottla_groups",
        _GAUGE,
        "Groups that this broker coordinates, by state.",
        ("state",),
        [((state,), count) for state, count in sorted(by_state.items())],
    )
    yield Metric(
        "ottla_group_members",
        _GAUGE,
        "Members of a group.",
        ("group",),
        budget.take([((group.group_id,), group.members_count) for group in groups]),
    )
    yield Metric(
        "ottla_group_state",
        _GAUGE,
        "1 for the state that a group is in.",
        ("group", "state"),
        budget.take([((group.group_id, group.state), 1) for group in groups]),
    )


def _lag(replicas: Replicas, tp: TopicPartition, committed: Offset) -> int | None:
    partition = replicas.leaders.get(tp)
    return None if partition is None else max(partition.high_watermark - committed, 0)


def _sums(lags: Iterable[tuple[str, TopicPartition, int]]) -> list[Sample]:
    sums = Counter[tuple[str, ...]]()
    for group_id, tp, lag in lags:
        sums[group_id, tp.topic] += lag
    return list(sums.items())


def _of_partition(group_id: str, tp: TopicPartition, number: int) -> Sample:
    return (group_id, tp.topic, str(tp.partition)), number
