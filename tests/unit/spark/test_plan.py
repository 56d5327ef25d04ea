"""The ranges of a batch, and the tasks that read them."""

import json

import pytest

from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.spark.plan import (
    DataLost,
    TaskRange,
    check_losses,
    find_losses,
    from_json,
    is_enough,
    limit,
    next_starts,
    plan_tasks,
    ranges_between,
    share,
    to_json,
)
from ottla.spark.read_options import Limits, OnDataLoss, TaskSizes

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))
B0 = TopicPartition("b", 0)
KB = dict.fromkeys((A0, A1, A2, B0), 1000.0)


def at(**places: int) -> dict[TopicPartition, Offset]:
    return {TopicPartition(name[0], int(name[1:])): Offset(to) for name, to in places.items()}


def part(tp: TopicPartition, start: int, end: int) -> TaskRange:
    return TaskRange(tp, OffsetRange(Offset(start), Offset(end)))


def test_offsets_are_written_in_one_order_whatever_order_they_come_in() -> None:
    text = json.dumps(to_json(at(b0=1, a10=2, a9=3)))
    assert text == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'
    assert text == json.dumps(to_json(at(a9=3, a10=2, b0=1)))
    assert from_json(json.loads(text)) == at(b0=1, a10=2, a9=3)


# Losses


def is_read(topic: str) -> bool:
    return topic == "a"


def test_nothing_is_lost_while_the_log_holds_what_is_next() -> None:
    assert find_losses(at(a0=5, a1=7), at(a0=5, a1=0), at(a0=5, a1=7, a2=9), is_read) == []


def test_a_loss_names_every_missing_offset() -> None:
    read = at(a0=5, a1=7, a2=3, a3=1, b0=1)
    losses = find_losses(read, at(a0=9, a1=0, a2=0), at(a0=20, a1=2, a2=4), is_read)
    with pytest.raises(DataLost) as raised:
        check_losses(losses, OnDataLoss.FAIL)
    text = str(raised.value)
    assert (
        "can be read. a-0: offsets 5 to 8 are missing, removed before they were read: the log"
        " begins at 9 now; a-1: it was read up to 7 and ends at 2 now, as if created again; a-3: it"
        " was read up to 1 and does not exist now; b-0: it was read up to 1 and is not subscribed"
        " to now. To continue"
    ) in text
    assert "a-2" not in text
    assert "onDataLoss=skip" in text
    check_losses(losses, OnDataLoss.SKIP)


def test_a_reader_that_skips_goes_on_behind_what_is_missing() -> None:
    starts = next_starts(
        at(a0=5, a1=7), at(a0=9, a1=0, a2=4), at(a0=20, a1=2, a2=6), OnDataLoss.SKIP
    )
    assert starts == at(a0=9, a1=2, a2=4)


def test_a_topic_created_again_is_read_from_its_beginning_if_asked() -> None:
    start, earliest, latest = at(a0=7), at(a0=0), at(a0=2)
    assert next_starts(start, earliest, latest, OnDataLoss.EARLIEST) == at(a0=0)
    assert ranges_between(start, latest, OnDataLoss.EARLIEST) == [part(A0, 0, 2)]
    assert ranges_between(start, latest, OnDataLoss.SKIP) == []


# Limits


def test_partitions_share_a_limit_in_proportion() -> None:
    end = limit(at(a0=0, a1=100), at(a0=900, a1=200), Limits(rows_max=100), KB)
    assert end == at(a0=90, a1=110)


def test_a_small_partition_is_never_left_behind() -> None:
    end = limit(at(a0=0, a1=0), at(a0=1_000_000, a1=1), Limits(rows_max=10), KB)
    assert end == at(a0=9, a1=1)


def test_every_partition_moves_even_where_the_limit_is_smaller_than_their_number() -> None:
    assert share(1, {A0: 5, A1: 5, A2: 5}) == {A0: 1, A1: 1, A2: 1}


def test_bytes_limit_a_batch_by_what_records_take_on_average() -> None:
    sizes = {A0: 1000.0, A1: 10.0}
    end = limit(at(a0=0, a1=0), at(a0=100, a1=100), Limits(bytes_max=50_500), sizes)
    assert end == at(a0=50, a1=50)


def test_a_record_larger_than_the_limit_is_read_all_the_same() -> None:
    assert limit(at(a0=0), at(a0=5), Limits(bytes_max=1), KB) == at(a0=1)


def test_too_little_waits_until_it_has_waited_long_enough() -> None:
    limits = Limits(rows_min=10, delay_ms_max=1000)
    start, latest = at(a0=0), at(a0=9)
    assert not is_enough(start, latest, limits, waited_ms=999)
    assert is_enough(start, latest, limits, waited_ms=1000)
    assert is_enough(start, at(a0=10), limits, waited_ms=0)
    assert not is_enough(start, at(a0=0), limits, waited_ms=5000)
    assert is_enough(start, at(a0=1), Limits(), waited_ms=0)


# Tasks


def test_small_partitions_share_a_task() -> None:
    ranges = [part(A0, 0, 10), part(A1, 5, 15), part(B0, 0, 1)]
    assert plan_tasks(ranges, TaskSizes()) == [tuple(ranges)]


def test_a_big_partition_is_split() -> None:
    sizes = TaskSizes(bytes_target=250_000, record_bytes=1000)
    assert plan_tasks([part(A0, 100, 1100)], sizes) == [
        (part(A0, 100, 350),),
        (part(A0, 350, 600),),
        (part(A0, 600, 850),),
        (part(A0, 850, 1100),),
    ]


def test_a_cut_moves_to_the_edge_of_a_partition_that_is_near() -> None:
    sizes = TaskSizes(tasks_min=2)
    ranges = [part(A0, 0, 1000), part(A1, 0, 1040)]
    assert plan_tasks(ranges, sizes) == [(ranges[0],), (ranges[1],)]


def test_there_can_be_a_least_and_a_greatest_number_of_tasks() -> None:
    ranges = [part(A0, 0, 1000)]
    assert len(plan_tasks(ranges, TaskSizes(tasks_min=7))) == 7
    assert len(plan_tasks(ranges, TaskSizes(bytes_target=1, tasks_max=3))) == 3
    assert len(plan_tasks([part(A0, 0, 2)], TaskSizes(tasks_min=7))) == 2


def test_a_task_can_have_a_greatest_number_of_records() -> None:
    tasks = plan_tasks([part(A0, 0, 7), part(A1, 0, 5)], TaskSizes(rows_max=5))
    assert tasks == [(part(A0, 0, 5),), (part(A0, 5, 7), part(A1, 0, 3)), (part(A1, 3, 5),)]


def test_heavy_records_make_smaller_tasks() -> None:
    ranges = [part(A0, 0, 100), part(A1, 0, 100)]
    sizes = TaskSizes(tasks_min=2)
    tasks = plan_tasks(ranges, sizes, {A0: 100.0, A1: 900.0})
    assert tasks == [(part(A0, 0, 100), part(A1, 0, 44)), (part(A1, 44, 100),)]


def test_nothing_needs_no_task() -> None:
    assert plan_tasks([], TaskSizes(tasks_min=4)) == []
