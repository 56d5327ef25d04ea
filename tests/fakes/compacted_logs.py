"""Compacted logs: written, compacted, and read."""

from fakes import build
from ottla.config import TopicConfig
from ottla.model import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from ottla.records.batch import (
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Marker,
    MarkerKind,
    Record,
    batches,
    build_batch,
    records,
)
from ottla.records.compression import Codec
from ottla.storage.cleaner import Cleaner
from ottla.storage.disk_worker import InlineWorker
from ottla.storage.log import Log

CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
    index_interval_bytes=100,
)
PLENTY_BYTES = 1 << 20


def put(
    log: Log,
    *pairs: tuple[bytes | None, bytes | None],
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    sequence: int = -1,
    is_transactional: bool = False,
    now_ms: int = build.NOW_MS,
    epoch: int = 0,
) -> int:
    """Append one batch of these keys and values; its base offset."""
    letters = [Record(timestamp_ms=TimestampMs(now_ms), key=k, value=v) for k, v in pairs]
    batch = build_batch(
        letters,
        codec=codec,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0) if producer_id >= 0 else NO_PRODUCER_EPOCH,
        base_sequence=Sequence(sequence),
        is_transactional=is_transactional,
    )
    appended = log.append_as_leader(batch, LeaderEpoch(epoch), TimestampMs(now_ms))
    return appended.base_offset


def end(log: Log, kind: MarkerKind, producer_id: int, now_ms: int = build.NOW_MS) -> None:
    log.append_marker(
        Marker(kind, 0),
        ProducerId(producer_id),
        ProducerEpoch(0),
        LeaderEpoch(0),
        TimestampMs(now_ms),
    )


def compact(
    log: Log, *, now_ms: int = build.NOW_MS, memory_bytes: int = PLENTY_BYTES, rolls: bool = True
) -> Cleaner:
    """Compact everything written so far."""
    if rolls:
        log.roll(TimestampMs(now_ms))
    log.flush()
    cleaner = Cleaner(log.files, InlineWorker())
    limit = log.last_stable_offset(log.end_offset)
    cleaner.begin([(log, limit)], TimestampMs(now_ms), memory_bytes)
    return cleaner


def headers(log: Log) -> list[BatchHeader]:
    return [header for header, _ in read_batches(log)]


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for header, view in read_batches(log)
        if not header.is_control
        for record in records(view)
    ]


def read_batches(log: Log) -> list[tuple[BatchHeader, memoryview]]:
    found: list[tuple[BatchHeader, memoryview]] = []
    offset = log.start_offset
    while (part := log.read(offset, log.end_offset, 1 << 20, at_least_one=True)) is not None:
        found += batches(log.read_bytes(part))
        offset = part.end_offset
    return found
