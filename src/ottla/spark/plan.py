"""Plans micro-batches: their offset ranges and the tasks that read them. Pure, without I/O.

A plan is a function of the batch's start and end offsets and the options: planned again after a
crash with the same options, every row goes to the task that had it before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.spark.read_options import Limits, OnDataLoss, TaskSizes

Offsets = Mapping[TopicPartition, Offset]
OffsetsJson = dict[str, dict[str, int]]

_SNAP: Final = 8  # a cut moves to a partition boundary within 1/_SNAP of a task
_BEGINNING: Final = Offset(0)
_TASKS_MAX: Final = 1000  # by size alone: Spark spends milliseconds on each


# Offsets in Spark's JSON


def to_json(offsets: Offsets) -> OffsetsJson:
    """Offsets in the format of Spark's Kafka connector, always in the same order.

    Spark compares offsets as text: the same ones in another order would be a new batch.
    """
    found: OffsetsJson = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, Offset]:
    """The inverse of `to_json`."""
    return {
        TopicPartition(topic, int(number)): Offset(at)
        for topic, partitions in found.items()
        for number, at in partitions.items()
    }


# Data loss


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of a partition that were not read and cannot be any more."""

    tp: TopicPartition
    missing: OffsetRange
    reason: str

    def explain(self) -> str:
        """A sentence for the error message or log line."""
        if not len(self.missing):
            return f"{self.tp}: {self.reason}"
        last = self.missing.end - 1
        return f"{self.tp}: offsets {self.missing.start} to {last} are missing, {self.reason}"


class DataLost(Exception):
    """Records that should be read do not exist or are not subscribed to, and onDataLoss=fail."""


def find_losses(
    start: Offsets, earliest: Offsets, latest: Offsets, is_read: Callable[[str], bool]
) -> list[Loss]:
    """Offsets from `start` on that cannot be read; `is_read` is true for subscribed topics."""
    losses = list[Loss]()
    for tp in sorted(start):
        at = start[tp]
        if tp not in latest:
            reason = f"it was read up to {at} and "
            reason += "does not exist now" if is_read(tp.topic) else "is not subscribed to now"
            losses.append(Loss(tp, OffsetRange(at, at), reason))
        elif latest[tp] < at:
            reason = f"it was read up to {at} and ends at {latest[tp]} now, as if created again"
            losses.append(Loss(tp, OffsetRange(at, at), reason))
        elif earliest[tp] > at:
            reason = f"removed before they were read: the log begins at {earliest[tp]} now"
            losses.append(Loss(tp, OffsetRange(at, earliest[tp]), reason))
    return losses


def check_losses(losses: Iterable[Loss], policy: OnDataLoss) -> None:
    """Raise `DataLost` with every missing range if onDataLoss=fail."""
    check_lines([loss.explain() for loss in losses], policy)


def check_lines(lines: Sequence[str], policy: OnDataLoss) -> None:
    """`check_losses` for losses that are explained already."""
    if lines and policy is OnDataLoss.FAIL:
        raise DataLost(
            f"not all records from this query's offsets on can be read. {'; '.join(lines)}."
            " To continue without them set onDataLoss=skip (or failOnDataLoss=false); to"
            " read a topic that was created again from its beginning set onDataLoss=earliest."
        )


# End of a batch


def next_starts(
    start: Offsets, earliest: Offsets, latest: Offsets, policy: OnDataLoss
) -> dict[TopicPartition, Offset]:
    """The offsets that the next batch reads from: new partitions from their earliest."""
    found = dict[TopicPartition, Offset]()
    for tp, end in latest.items():
        at = start.get(tp)
        if at is None or (end < at and policy is OnDataLoss.EARLIEST):
            found[tp] = earliest[tp]
        else:
            found[tp] = Offset(min(max(at, earliest[tp]), end))
    return found


def is_enough(start: Offsets, latest: Offsets, limits: Limits, *, waited_ms: int) -> bool:
    """True if there are enough records for a batch, or `delay_ms_max` has passed."""
    rows = sum(latest[tp] - start.get(tp, _BEGINNING) for tp in latest)
    if not rows:
        return False
    return limits.rows_min is None or rows >= limits.rows_min or waited_ms >= limits.delay_ms_max


def limit(
    start: Offsets, latest: Offsets, limits: Limits, record_bytes: Mapping[TopicPartition, float]
) -> dict[TopicPartition, Offset]:
    """The end offsets of a batch from `start` that may reach `latest`.

    Partitions share the limit in proportion to their records. Each one with records gets at least
    one, even where that exceeds the limit: no partition starves.
    """
    rows = {tp: latest[tp] - start[tp] for tp in latest if latest[tp] > start[tp]}
    allowed = dict(rows)
    if limits.rows_max is not None:
        allowed = share(limits.rows_max, rows)
    if limits.bytes_max is not None:
        sizes = {tp: max(1, round(count * record_bytes[tp])) for tp, count in rows.items()}
        for tp, share_bytes in share(limits.bytes_max, sizes).items():
            allowed[tp] = min(allowed[tp], max(1, int(share_bytes / record_bytes[tp])))
    end = {tp: Offset(start[tp] + allowed.get(tp, 0)) for tp in latest}
    assert all(start[tp] <= end[tp] for tp in end), "a batch never goes back"
    return end


def share(total: int, demands: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divide `total` in proportion to demands, at least 1 for each; all demands if they fit."""
    demanded = sum(demands.values())
    if demanded <= total:
        return dict(demands)
    shares = {tp: max(1, total * demand // demanded) for tp, demand in demands.items()}
    left = total - sum(shares.values())
    # Rounding down leaves less than one for each; those that lost most to it come first.
    for tp in sorted(demands, key=lambda tp: (-(total * demands[tp] % demanded), tp)):
        if left > 0 and shares[tp] < demands[tp]:
            shares[tp] += 1
            left -= 1
    # Rounding up to 1 may have given too much; those that have most give it back.
    for tp in sorted(demands, key=lambda tp: (-shares[tp], tp)):
        if left >= 0:
            break
        given_back = min(shares[tp] - 1, -left)
        shares[tp] -= given_back
        left += given_back
    return shares


# Tasks


@dataclass(frozen=True, slots=True)
class TaskRange:
    """An offset range of one partition."""

    tp: TopicPartition
    offsets: OffsetRange


Task = tuple[TaskRange, ...]


def ranges_between(start: Offsets, end: Offsets, policy: OnDataLoss) -> list[TaskRange]:
    """The ranges of a batch from `start` to `end`.

    A partition that is new in `end` is read from offset 0. One that ends before it starts was
    created again: it has nothing for this batch, unless onDataLoss=earliest.
    """
    found = list[TaskRange]()
    for tp in sorted(end):
        at = start.get(tp, _BEGINNING)
        if end[tp] < at and policy is OnDataLoss.EARLIEST:
            at = _BEGINNING
        if end[tp] > at:
            found.append(TaskRange(tp, OffsetRange(at, end[tp])))
    return found


def plan_tasks(
    ranges: Iterable[TaskRange],
    sizes: TaskSizes,
    record_bytes: Mapping[TopicPartition, float] | None = None,
) -> list[Task]:
    """Pack small partitions together and split big ones, so that tasks have about the same bytes.

    All ranges are laid end to end and the line is cut into equal parts. `record_bytes` is what a
    record of a partition takes on average; without it, all of them take what `sizes` guesses.
    """
    line = [part for part in ranges if len(part.offsets)]
    if not line:
        return []
    weights = [
        max(1.0, (record_bytes or {}).get(part.tp, float(sizes.record_bytes))) for part in line
    ]
    ends_bytes = [0.0]
    for part, weight in zip(line, weights, strict=True):
        ends_bytes.append(ends_bytes[-1] + len(part.offsets) * weight)
    total_bytes = ends_bytes[-1]
    rows = sum(len(part.offsets) for part in line)
    count = _task_count(total_bytes, rows, sizes)
    cuts_bytes = [
        _snapped(total_bytes * number / count, ends_bytes, total_bytes / count / _SNAP)
        for number in range(count + 1)
    ]
    tasks = [
        tuple(_between(line, weights, ends_bytes, from_bytes, to_bytes))
        for from_bytes, to_bytes in pairwise(cuts_bytes)
    ]
    planned = [small for task in tasks if task for small in _at_most(task, sizes.rows_max)]
    _check_covers(line, planned)
    return planned


def _check_covers(ranges: list[TaskRange], tasks: list[Task]) -> None:
    """Assert that tasks read the ranges in order, every offset once."""
    planned = [part for task in tasks for part in task]
    for before, part in pairwise(planned):
        assert before.tp != part.tp or before.offsets.end == part.offsets.start, (before, part)
    assert sum(len(one.offsets) for one in planned) == sum(len(one.offsets) for one in ranges)


def _task_count(total_bytes: float, rows: int, sizes: TaskSizes) -> int:
    count = min(-int(-total_bytes // sizes.bytes_target), _TASKS_MAX)
    count = max(count, sizes.tasks_min)
    if sizes.tasks_max is not None:
        count = min(count, sizes.tasks_max)
    return min(count, rows)


def _snapped(cut_bytes: float, edges_bytes: list[float], reach_bytes: float) -> float:
    """The nearest partition boundary if within reach: tasks should not read slivers."""
    nearest = min(edges_bytes, key=lambda edge: abs(edge - cut_bytes))
    return nearest if abs(nearest - cut_bytes) <= reach_bytes else cut_bytes


def _between(
    line: list[TaskRange],
    weights: list[float],
    ends_bytes: list[float],
    from_bytes: float,
    to_bytes: float,
) -> Iterator[TaskRange]:
    """The parts of the line between two cuts; both cuts are rounded to whole records alike."""
    for part, weight, start_bytes in zip(line, weights, ends_bytes, strict=False):
        rows = len(part.offsets)
        first = min(rows, max(0, round((from_bytes - start_bytes) / weight)))
        last = min(rows, max(0, round((to_bytes - start_bytes) / weight)))
        if first < last:
            at = part.offsets.start
            yield TaskRange(part.tp, OffsetRange(Offset(at + first), Offset(at + last)))


def _at_most(task: Task, rows_max: int | None) -> Iterator[Task]:
    """The task split into tasks of at most `rows_max` records."""
    if rows_max is None:
        yield task
        return
    room, gathered = rows_max, list[TaskRange]()
    for part in task:
        at, end = part.offsets.start, part.offsets.end
        while at < end:
            stop = Offset(min(end, at + room))
            gathered.append(TaskRange(part.tp, OffsetRange(at, stop)))
            room -= stop - at
            at = stop
            if not room:
                yield tuple(gathered)
                room, gathered = rows_max, []
    if gathered:
        yield tuple(gathered)
