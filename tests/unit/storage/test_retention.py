"""Which segments may go."""

from ottla.config import TopicConfig
from ottla.model import Offset, TimestampMs
from ottla.storage.retention import SegmentFacts, expired_count

SEALED = [
    SegmentFacts(Offset(end), 100, TimestampMs(timestamp_ms))
    for end, timestamp_ms in [(10, 1000), (20, 5000), (30, 2000)]
]
FOR_EVER = TopicConfig(retention_ms=-1, retention_bytes=-1)


def count(config: TopicConfig, *, now_ms: int = 5500, start: int = 0, active: int = 50) -> int:
    total_bytes = active + sum(segment.size_bytes for segment in SEALED)
    return expired_count(SEALED, total_bytes, Offset(start), config, TimestampMs(now_ms))


def test_without_limits_everything_stays() -> None:
    assert count(FOR_EVER, now_ms=10**15) == 0


def test_a_segment_goes_when_its_newest_record_is_too_old() -> None:
    config = TopicConfig(retention_ms=1000)
    assert count(config) == 1
    assert count(config, now_ms=2000) == 0, "exactly as old as allowed"


def test_an_old_segment_behind_a_young_one_waits() -> None:
    assert count(TopicConfig(retention_ms=1000), now_ms=5999) == 1
    assert count(TopicConfig(retention_ms=1000), now_ms=6001) == 3


def test_segments_go_while_the_rest_still_fills_the_limit() -> None:
    assert [
        count(TopicConfig(retention_ms=-1, retention_bytes=limit))
        for limit in (400, 350, 250, 249, 150, 50, 0)
    ] == [0, 0, 1, 1, 2, 3, 3]


def test_segments_below_the_start_of_the_log_go() -> None:
    assert [count(FOR_EVER, start=start) for start in (9, 10, 20, 29, 30)] == [0, 1, 2, 2, 3]


def test_a_segment_without_timestamps_is_not_old() -> None:
    timeless = [SegmentFacts(Offset(10), 100, TimestampMs(-1))]
    config = TopicConfig(retention_ms=1)
    assert expired_count(timeless, 100, Offset(0), config, TimestampMs(10**15)) == 0


def test_a_segment_that_compaction_has_emptied_goes_with_the_next() -> None:
    emptied = SegmentFacts(Offset(5), 61, TimestampMs(-1))
    config = TopicConfig(retention_ms=1000, cleanup_policy=("compact", "delete"))
    now_ms = TimestampMs(5500)
    assert expired_count([emptied, *SEALED], 400, Offset(0), config, now_ms) == 2
    assert expired_count([emptied, *SEALED], 400, Offset(0), config, TimestampMs(2000)) == 0


def test_a_compacted_log_loses_only_what_lies_below_its_start() -> None:
    config = TopicConfig(retention_ms=1, retention_bytes=1, cleanup_policy=("compact",))
    assert [count(config, start=start) for start in (0, 10, 29)] == [0, 1, 2]
