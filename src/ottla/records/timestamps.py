"""Validation of the timestamps in a producer's batch, and the largest timestamp for its header.

Apache Kafka reads every record, checks its timestamp and writes the largest into the header. Here
a plausible header is trusted; records are read only if the header cannot be right, or if the topic
limits the age of records.
"""

from typing import Final

from ottla.config import INT64_MAX, TopicConfig
from ottla.errors import InvalidTimestamp, RecordError
from ottla.model import NO_TIMESTAMP, TimestampMs
from ottla.records.batch import BatchHeader, Buffer, decompressed_bytes_max
from ottla.records.record_slices import payload_of, slice_records

ANY_AGE: Final = INT64_MAX  # the default of message.timestamp.before.max.ms


def checked_max_timestamp(
    batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: TimestampMs
) -> int:
    """The largest timestamp of a batch, or `InvalidTimestamp` if one of its records has a bad one.

    Records without a timestamp (-1) are always accepted, and ignored here.
    """
    if is_header_trusted(header, config, now_ms):
        return header.max_timestamp_ms
    times = record_timestamps(batch, header, decompressed_bytes_max(config.max_message_bytes))
    known = [time_ms for time_ms in times if time_ms != NO_TIMESTAMP]
    if known and (_problem(max(known), config, now_ms) or _problem(min(known), config, now_ms)):
        raise _refusal(times, config, now_ms)
    return max(max(known, default=NO_TIMESTAMP), NO_TIMESTAMP)


def _refusal(times: list[int], config: TopicConfig, now_ms: TimestampMs) -> InvalidTimestamp:
    bad = [
        RecordError(index, problem)
        for index, time_ms in enumerate(times)
        if (problem := _problem(time_ms, config, now_ms)) is not None
    ]
    text = f"{len(bad)} of {len(times)} records have a bad timestamp: {bad[0].text}"
    return InvalidTimestamp(text, bad)


def _problem(time_ms: int, config: TopicConfig, now_ms: TimestampMs) -> str | None:
    if time_ms == NO_TIMESTAMP:
        return None
    if time_ms - now_ms > config.timestamp_after_max_ms:
        return f"timestamp {time_ms} is more than {config.timestamp_after_max_ms} ms in the future"
    if now_ms - time_ms > config.timestamp_before_max_ms:
        return f"timestamp {time_ms} is more than {config.timestamp_before_max_ms} ms in the past"
    return None


def is_header_trusted(header: BatchHeader, config: TopicConfig, now_ms: TimestampMs) -> bool:
    """True if the timestamps in the header can be used without reading the records.

    librdkafka counts the largest timestamp up from 0, so a header with 0 may stand for records
    that have none. A largest timestamp before the first one is always wrong. If one is too far in
    the future, the batch is refused only if a record really has it.
    """
    return (
        header.base_timestamp_ms <= header.max_timestamp_ms > 0
        and header.max_timestamp_ms - now_ms <= config.timestamp_after_max_ms
        and config.timestamp_before_max_ms == ANY_AGE
    )


def record_timestamps(batch: Buffer, header: BatchHeader, bytes_max: int) -> list[int]:
    """The timestamps of a batch's records; NO_TIMESTAMP for one that has none."""
    payload = payload_of(batch, header, bytes_max)
    found = slice_records(payload, header.record_count)
    return [header.base_timestamp_ms + delta_ms for _, _, delta_ms, *_ in found]
