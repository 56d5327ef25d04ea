"""Rows at a rate, by a clock of the test's own."""

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from ottla.spark.pipelines.replay import pace


class ManualTime:
    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, span_s: float) -> None:
        self.now_s += span_s


def paced(rate_per_s: int, *sizes: int) -> list[tuple[float, list[int]]]:
    """The seconds from the start at which rows pass."""
    time = ManualTime()
    first = iter(range(sum(sizes)))
    batches = [pa.record_batch({"n": [next(first) for _ in range(size)]}) for size in sizes]
    steps = pace(iter(batches), rate_per_s, lambda: time.now_s, time.sleep)
    return [(round(time.now_s - 100, 3), step.column("n").to_pylist()) for step in steps]


def test_rows_pass_evenly() -> None:
    found = paced(10, 2, 2, 1, 2)
    assert found == [(0.0, [0, 1]), (0.2, [2, 3]), (0.4, [4]), (0.5, [5, 6])]


def test_a_slow_rate_lets_pass_one_by_one() -> None:
    assert paced(1, 1, 1, 1) == [(0.0, [0]), (1.0, [1]), (2.0, [2])]


def test_time_lost_is_made_up_for() -> None:
    time = ManualTime()
    batches = (pa.record_batch({"n": [number]}) for number in range(4))
    passed = list[float]()
    for _ in pace(batches, 1, lambda: time.now_s, time.sleep):
        passed.append(time.now_s - 100)
        time.now_s += 1.5 if len(passed) == 1 else 0  # writing the first one was slow
    assert passed == [0.0, 1.5, 2.0, 3.0]
