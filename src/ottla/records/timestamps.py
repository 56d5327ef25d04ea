"""Which timestamps a producer's batch may have, and which its header should say.

Apache Kafka reads every record, checks its timestamp and writes the largest into the header. Here
the header is believed as long as it is plausible; only a batch whose header cannot be right, or
whose topic limits how old records may be, has its records looked at.
"""

from typing import Final, NamedTuple

from ottla.config import INT64_MAX, TopicConfig
from ottla.errors import InvalidTimestamp
from ottla.model import NO_TIMESTAMP, TimestampMs
from ottla.records.batch import BatchHeader, Buffer, decompressed_bytes_max
from ottla.records.record_slices import find_letters, payload_of

ANY_AGE: Final = INT64_MAX  # the default of message.timestamp.before.max.ms


class TimeSpan(NamedTuple):
    """The oldest and the newest of some timestamps; NO_TIMESTAMP twice when there are none."""

    oldest_ms: int
    newest_ms: int


def checked_max_timestamp(
    batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: TimestampMs
) -> int:
    """The largest timestamp of a batch, or `InvalidTimestamp` if one of its records has a bad one.

    Records without a timestamp (-1) are always accepted, and count for nothing.
    """
    if is_believed(header, config, now_ms):
        return header.max_timestamp_ms
    span = record_timestamps(batch, header, decompressed_bytes_max(config.max_message_bytes))
    if span.newest_ms - now_ms > config.timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {span.newest_ms} lies more than"
            f" {config.timestamp_after_max_ms} ms in the future"
        )
    if span.oldest_ms != NO_TIMESTAMP and (
        now_ms - span.oldest_ms > config.timestamp_before_max_ms
    ):
        raise InvalidTimestamp(
            f"timestamp {span.oldest_ms} lies more than"
            f" {config.timestamp_before_max_ms} ms in the past"
        )
    return max(span.newest_ms, NO_TIMESTAMP)


def is_believed(header: BatchHeader, config: TopicConfig, now_ms: TimestampMs) -> bool:
    """Whether the header alone tells a batch's times.

    librdkafka counts the largest timestamp up from 0, so a header with 0 may stand for records
    that have none. A largest timestamp before the first one is wrong in any case. One too far in
    the future is a reason to refuse the batch, if a record really has it.
    """
    return (
        header.base_timestamp_ms <= header.max_timestamp_ms > 0
        and header.max_timestamp_ms - now_ms <= config.timestamp_after_max_ms
        and config.timestamp_before_max_ms == ANY_AGE
    )


def record_timestamps(batch: Buffer, header: BatchHeader, bytes_max: int) -> TimeSpan:
    """The oldest and the newest timestamp of a batch's records, leaving out those without one."""
    payload = payload_of(batch, header, bytes_max)
    found = find_letters(payload, header.record_count)
    times = [header.base_timestamp_ms + delta_ms for _, _, delta_ms, *_ in found]
    known = [time_ms for time_ms in times if time_ms != NO_TIMESTAMP]
    return TimeSpan(min(known), max(known)) if known else TimeSpan(NO_TIMESTAMP, NO_TIMESTAMP)
