"""Sealed segments that may be deleted: by age, by the log's size, or below its start."""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.config import TopicConfig
from ottla.model import Offset, TimestampMs


class SegmentFacts(NamedTuple):
    """The facts about a sealed segment that retention needs."""

    end_offset: Offset
    size_bytes: int
    max_timestamp_ms: TimestampMs


def expired_count(
    sealed: Iterable[SegmentFacts],
    log_bytes: int,
    start_offset: Offset,
    config: TopicConfig,
    now_ms: TimestampMs,
) -> int:
    """The number of oldest sealed segments that may go: a prefix, for a log has no holes.

    A log that is only compacted loses nothing but what lies below its start.
    """
    does_delete = "delete" in config.cleanup_policy
    count = timeless = 0
    rest_bytes = log_bytes
    for segment in sealed:
        rest_bytes -= segment.size_bytes
        if segment.end_offset > start_offset and not (
            does_delete
            and (
                is_too_old(segment.max_timestamp_ms, config, now_ms)
                or _is_too_much(rest_bytes, config)
            )
        ):
            if segment.max_timestamp_ms >= 0 or not does_delete:
                break
            timeless += 1  # compaction has left no time in it: the next segment decides
            continue
        count += timeless + 1
        timeless = 0
    return count


def is_too_old(max_timestamp_ms: TimestampMs, config: TopicConfig, now_ms: TimestampMs) -> bool:
    """True when even the newest record is older than `retention.ms`; False without a time."""
    if config.retention_ms < 0 or max_timestamp_ms < 0:
        return False
    return now_ms - max_timestamp_ms > config.retention_ms


def _is_too_much(rest_bytes: int, config: TopicConfig) -> bool:
    """True when the log without this segment would still fill `retention.bytes`."""
    return config.retention_bytes >= 0 and rest_bytes >= config.retention_bytes
