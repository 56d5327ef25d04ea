"""Appending a producer's batch with every check that its topic may ask for."""

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.config import TimestampType, TopicConfig
from ottla.errors import MessageTooLarge, StorageFailed
from ottla.model import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)
from ottla.records.batch import (
    HIDES_ALL,
    BatchHeader,
    Marker,
    build_marker,
    check_batch,
    decompressed_bytes_max,
    read_header,
    recompress,
    stamp,
    stamp_max_timestamp,
    stamp_time,
)
from ottla.records.compression import Codec
from ottla.records.record_slices import check_keys
from ottla.records.timestamps import ANY_AGE, checked_max_timestamp
from ottla.storage.log_core import LogCore
from ottla.storage.producers import ProducedBatch

_CREATE_TIME: Final = TimestampType.CREATE_TIME


class Appended(NamedTuple):
    """The offsets that a batch was given."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: TimestampMs  # -1 unless the broker's clock gave the records their time
    is_duplicate: bool


# Called with a batch that no check refused and that is not a repeated one, with its header and with
# the time that the broker's clock gives it, or -1. The batch to append instead, and the largest
# timestamp of what readers see of it; None for a batch that is to be appended as it is.
Judge = Callable[[bytearray | memoryview, BatchHeader, TimestampMs], tuple[bytearray, int] | None]


def append_checked(
    core: LogCore,
    batch: bytearray | memoryview,
    config: TopicConfig,
    leader_epoch: LeaderEpoch,
    now_ms: TimestampMs,
    judge: Judge | None = None,
) -> Appended:
    """`Log.append_as_leader` for every batch, step by step."""
    if core.offline_reason is not None:
        raise StorageFailed(core.offline_reason)
    if len(batch) > config.max_message_bytes:
        raise MessageTooLarge(
            f"{len(batch)} bytes exceed the topic's max.message.bytes, {config.max_message_bytes}"
        )
    header = check_batch(batch)
    append_time_ms, max_timestamp_ms = NO_TIMESTAMP, int(now_ms)
    if config.timestamp_type is _CREATE_TIME:
        max_timestamp_ms = checked_max_timestamp(batch, header, config, now_ms)
    else:
        append_time_ms = now_ms
    is_idempotent = header.producer_id >= 0
    if is_idempotent and (known := core.producers.admit(header, config, now_ms)) is not None:
        return _repeated(known, append_time_ms)
    judged = judge(batch, header, append_time_ms) if judge is not None else None
    if judged is not None:
        batch, max_timestamp_ms = judged
        header = read_header(batch)
    if config.compression_type != "producer" or "compact" in config.cleanup_policy:
        batch = _opened(batch, header, config)
    _stamp_times(batch, header, append_time_ms, max_timestamp_ms)
    base_offset = core.end_offset
    stamp(batch, base_offset, leader_epoch)
    last_offset = Offset(base_offset + header.last_offset_delta)
    core.write(batch, last_offset, max_timestamp_ms, now_ms)
    if leader_epoch != core.epochs.latest:
        core.epochs.note(leader_epoch, base_offset)
    if is_idempotent:
        core.producers.note(header, base_offset, now_ms)
    return Appended(base_offset, last_offset, append_time_ms, False)


def append_built(
    core: LogCore, batch: bytearray, leader_epoch: LeaderEpoch, now_ms: TimestampMs
) -> Appended:
    """`Log.append_built`."""
    if core.offline_reason is not None:
        raise StorageFailed(core.offline_reason)
    header, base_offset = read_header(batch), core.end_offset
    stamp(batch, base_offset, leader_epoch)
    last_offset = Offset(base_offset + header.last_offset_delta)
    core.write(batch, last_offset, header.max_timestamp_ms, now_ms)
    core.epochs.note(leader_epoch, base_offset)
    return Appended(base_offset, last_offset, NO_TIMESTAMP, False)


def append_marker(
    core: LogCore,
    marker: Marker,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    leader_epoch: LeaderEpoch,
    now_ms: TimestampMs,
) -> Appended:
    """`Log.append_marker`."""
    if core.offline_reason is not None:
        raise StorageFailed(core.offline_reason)
    core.producers.check_marker(producer_id, producer_epoch, marker.coordinator_epoch)
    batch = build_marker(
        marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
    )
    offset = core.end_offset
    stamp(batch, offset, leader_epoch)
    core.write(batch, offset, now_ms, now_ms)
    core.epochs.note(leader_epoch, offset)
    core.note_marker(read_header(batch), offset, marker, now_ms)
    return Appended(offset, offset, NO_TIMESTAMP, False)


def _stamp_times(
    batch: bytearray | memoryview,
    header: BatchHeader,
    append_time_ms: TimestampMs,
    max_timestamp_ms: int,
) -> None:
    if append_time_ms >= 0 and not header.attributes & HIDES_ALL:
        stamp_time(batch, append_time_ms)
    elif max_timestamp_ms != header.max_timestamp_ms:
        stamp_max_timestamp(batch, max_timestamp_ms)


def _repeated(known: ProducedBatch, append_time_ms: TimestampMs) -> Appended:
    """The result for a batch that is in the log already, with its first offset and time."""
    if append_time_ms >= 0:
        append_time_ms = known.appended_ms
    return Appended(known.base_offset, known.last_offset, append_time_ms, True)


def is_plain_but_keys(config: TopicConfig) -> bool:
    """True when the topic takes batches as they are, but for keys if it is compacted."""
    return (
        config.timestamp_type is _CREATE_TIME
        and config.compression_type == "producer"
        and config.timestamp_before_max_ms == ANY_AGE
    )


def _opened(
    batch: bytearray | memoryview, header: BatchHeader, config: TopicConfig
) -> bytearray | memoryview:
    """Look into a batch as its topic asks: for keys, and for another codec."""
    bytes_max = decompressed_bytes_max(config.max_message_bytes)
    if "compact" in config.cleanup_policy:
        check_keys(batch, header, decompressed_bytes_max=bytes_max)
    if config.compression_type == "producer":
        return batch
    codec = Codec.named(config.compression_type)
    if codec == header.codec:
        return batch
    level = _level(codec, config)
    return recompress(batch, codec, level=level, decompressed_bytes_max=bytes_max)


def _level(codec: Codec, config: TopicConfig) -> int | None:
    if codec is Codec.GZIP and config.compression_gzip_level >= 0:
        return config.compression_gzip_level
    return config.compression_zstd_level if codec is Codec.ZSTD else None
