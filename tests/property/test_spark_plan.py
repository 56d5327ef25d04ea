"""Whatever the offsets are: nothing is read twice, nothing is left out, nobody starves."""

import json
from random import Random

import hypothesis.strategies as st
from hypothesis import given

from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.spark.plan import (
    TaskRange,
    from_json,
    limit,
    plan_tasks,
    ranges_between,
    share,
    to_json,
)
from ottla.spark.read_options import Limits, OnDataLoss, TaskSizes

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 12))
offsets = st.integers(0, 10**12).map(Offset)
rows = st.one_of(st.integers(1, 50), st.integers(1, 10**9))
sizes = st.builds(
    TaskSizes,
    bytes_target=st.integers(1 << 10, 1 << 30),
    tasks_min=st.integers(1, 40),
    tasks_max=st.none() | st.integers(1, 40),
    record_bytes=st.integers(1, 10_000),
)


@st.composite
def ranges(draw: st.DrawFn) -> list[TaskRange]:
    found = draw(st.dictionaries(partitions, st.tuples(offsets, rows), max_size=12))
    return [TaskRange(tp, OffsetRange(at, Offset(at + count))) for tp, (at, count) in found.items()]


@given(ranges(), sizes, st.dictionaries(partitions, st.floats(1, 1e6)))
def test_tasks_read_every_record_once(
    wanted: list[TaskRange], sizes: TaskSizes, weights: dict[TopicPartition, float]
) -> None:
    tasks = plan_tasks(wanted, sizes, weights)
    joined = dict[TopicPartition, OffsetRange]()
    for part in sorted(
        (part for task in tasks for part in task), key=lambda p: (p.tp, p.offsets.start)
    ):
        assert len(part.offsets)
        before = joined.get(part.tp)
        assert before is None or before.end == part.offsets.start
        first = part.offsets.start if before is None else before.start
        joined[part.tp] = OffsetRange(first, part.offsets.end)
    assert joined == {part.tp: part.offsets for part in wanted}
    assert all(tasks)
    if sizes.tasks_max is not None:
        assert len(tasks) <= sizes.tasks_max


@given(ranges(), sizes, st.integers(1, 10**8))
def test_no_task_has_more_records_than_it_may(
    wanted: list[TaskRange], sizes: TaskSizes, rows_max: int
) -> None:
    total = sum(len(part.offsets) for part in wanted)
    if total > 1000 * rows_max:
        rows_max = total // 1000 + 1
    small = TaskSizes(bytes_target=sizes.bytes_target * 1000, tasks_min=3, rows_max=rows_max)
    tasks = plan_tasks(wanted, small)
    assert all(sum(len(part.offsets) for part in task) <= rows_max for task in tasks)
    assert sum(len(part.offsets) for task in tasks for part in task) == total


@given(st.dictionaries(partitions, rows, min_size=1), st.integers(1, 10**9))
def test_sharing_starves_nobody_and_wastes_nothing(
    demands: dict[TopicPartition, int], total: int
) -> None:
    shares = share(total, demands)
    assert shares.keys() == demands.keys()
    assert all(1 <= shares[tp] <= demands[tp] for tp in demands)
    assert sum(shares.values()) == max(len(demands), min(total, sum(demands.values())))


@given(
    st.dictionaries(partitions, st.tuples(offsets, st.integers(0, 10**6)), min_size=1),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**9),
)
def test_a_limited_batch_lies_between_its_start_and_the_latest(
    found: dict[TopicPartition, tuple[Offset, int]], rows_max: int | None, bytes_max: int | None
) -> None:
    start = {tp: at for tp, (at, _) in found.items()}
    latest = {tp: Offset(at + count) for tp, (at, count) in found.items()}
    limits = Limits(rows_max=rows_max, bytes_max=bytes_max)
    end = limit(start, latest, limits, dict.fromkeys(found, 123.0))
    assert end.keys() == latest.keys()
    for tp in found:
        assert start[tp] <= end[tp] <= latest[tp]
        assert end[tp] > start[tp] or latest[tp] == start[tp]


@given(st.dictionaries(partitions, offsets), st.randoms())
def test_offsets_survive_json_and_their_order_does_not_matter(
    found: dict[TopicPartition, Offset], rng: Random
) -> None:
    items = list(found.items())
    rng.shuffle(items)
    text = json.dumps(to_json(dict(items)))
    assert text == json.dumps(to_json(found))
    assert from_json(json.loads(text)) == found


@given(
    st.dictionaries(partitions, offsets),
    st.dictionaries(partitions, offsets),
    st.sampled_from(OnDataLoss),
)
def test_a_batch_reads_no_partition_beyond_its_end(
    start: dict[TopicPartition, Offset], end: dict[TopicPartition, Offset], policy: OnDataLoss
) -> None:
    for part in ranges_between(start, end, policy):
        assert part.offsets.end == end[part.tp]
        assert part.offsets.start in {start.get(part.tp, 0), 0}
