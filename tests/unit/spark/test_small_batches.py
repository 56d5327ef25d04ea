"""Which micro-batches the planner of a stream reads itself."""

from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.spark.plan import TaskRange
from ottla.spark.small_batches import RECORDS_MAX, SmallBatches
from ottla.spark.topic_ids import StreamTask

FIRST, SECOND = {"t": {"0": 1}}, {"t": {"0": 2}}


def task(count: int = 1, **ids: str) -> StreamTask:
    """A task that reads so many records of a topic `t`."""
    part = TaskRange(TopicPartition("t", 0), OffsetRange(Offset(0), Offset(count)))
    return StreamTask(ranges=(part,), ids=ids, noted=frozenset(), begins={})


def after_tasks(**ids: str) -> SmallBatches:
    """A run in which tasks have read a batch."""
    small = SmallBatches()
    assert small.take([task(1, **ids)], FIRST) is None
    small.note_finished(FIRST)
    return small


def test_ids_count_when_the_batch_that_compared_them_has_ended() -> None:
    small, next_one = SmallBatches(), task(t="a")
    assert small.take([task(t="a")], FIRST) is None
    small.note_finished(SECOND)
    assert small.take([next_one], SECOND) is None
    small.note_finished(SECOND)
    assert small.take([next_one], SECOND) is next_one


def test_many_records_or_several_tasks_are_left_to_workers() -> None:
    small = after_tasks(t="a")
    assert small.take([task(RECORDS_MAX + 1, t="a")], SECOND) is None
    assert small.take([task(t="a"), task(t="a")], SECOND) is None
    assert small.take([], SECOND) is None
    assert small.take([largest := task(RECORDS_MAX, t="a")], SECOND) is largest


def test_topics_with_another_id_or_without_one_are_left_to_workers() -> None:
    assert after_tasks(t="a").take([task(t="b")], SECOND) is None
    assert after_tasks(t="a").take([task()], SECOND) is None
    assert after_tasks().take([task()], SECOND) is None
