"""What compaction keeps, what it drops, and when."""

from ottla.config import TopicConfig
from ottla.model import (
    Offset,
    TimestampMs,
)
from ottla.storage.compaction import (
    Cleanable,
    SegmentFacts,
    cleanable,
    dirtiest,
    fits,
    is_worth_it,
)


def facts(*spans: tuple[int, int, int, int]) -> list[SegmentFacts]:
    return [
        SegmentFacts(Offset(base), Offset(end), size, TimestampMs(time_ms))
        for base, end, size, time_ms in spans
    ]


SEALED = facts((0, 10, 100, 1000), (10, 20, 50, 2000), (20, 30, 50, 3000))


def plan(dirty_start: int = 0, limit: int = 30, now_ms: int = 5000, lag_ms: int = 0) -> Cleanable:
    config = TopicConfig(min_compaction_lag_ms=lag_ms)
    return cleanable(SEALED, Offset(dirty_start), Offset(limit), config, TimestampMs(now_ms))


def test_only_whole_segments_below_the_limit_are_cleanable() -> None:
    assert plan()[:4] == (0, 30, 0, 200)
    assert plan(dirty_start=10)[:4] == (10, 30, 100, 100)
    assert plan(limit=29)[:4] == (0, 20, 0, 150)
    assert plan(dirty_start=30)[:4] == (30, 30, 200, 0)


def test_records_are_safe_for_the_minimum_lag() -> None:
    assert plan(lag_ms=2000).end == 30
    assert plan(lag_ms=2001).end == 20
    assert plan(lag_ms=4001).end == 0


def test_a_log_is_worth_it_when_dirty_enough_or_overdue() -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=0.5)
    assert is_worth_it(plan(dirty_start=10), config)
    assert not is_worth_it(plan(dirty_start=20), config)
    assert is_worth_it(plan(dirty_start=20)._replace(is_overdue=True), config)
    assert not is_worth_it(plan(dirty_start=30)._replace(is_overdue=True), config)


def test_overdue_logs_go_first_then_the_dirtiest() -> None:
    slightly, very = plan(dirty_start=20), plan(dirty_start=10)
    assert dirtiest([slightly, very]) == 1
    assert dirtiest([slightly._replace(is_overdue=True), very]) == 0


def test_a_segment_joins_those_before_it_if_there_is_room_for_all_of_it() -> None:
    first, second, third = SEALED
    assert fits([], 0, first, 10), "one is always taken, however large"
    assert fits([first], 50, second, 50 + second.size_bytes)
    assert not fits([first], 51, second, 50 + second.size_bytes)
    assert fits([first, second], 0, third, third.size_bytes)
    far = facts((0, 10, 1, 0), (10, 2**31 + 5, 1, 0))
    assert not fits(far[:1], 1, far[1], 100)
    small, large = (facts(*((at, at + 1, size, 0) for at in range(100))) for size in (1, 100))
    assert fits(small[:63], 63, small[63], 100)
    assert not fits(small[:64], 64, small[64], 100)
    assert fits(large[:15], 0, large[15], 100)
    assert not fits(large[:16], 0, large[16], 100), "their files are all open for a while"
