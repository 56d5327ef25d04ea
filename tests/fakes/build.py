"""Builders for what storage tests need, each with defaults that a test can ignore."""

from pathlib import Path

from ottla.config import TopicConfig
from ottla.model import (
    NO_PRODUCER,
    NO_SEQUENCE,
    NO_UUID,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
    TopicPartition,
)
from ottla.records.batch import NO_PRODUCER_EPOCH, Record, build_batch
from ottla.records.compression import Codec
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_listener import LogListener
from ottla.storage.log_states import NotedState, fits

NOW_MS = TimestampMs(1_700_000_000_000)
TP = TopicPartition("orders", 0)
DIRECTORY = Path("/data/orders-0")
EPOCH = LeaderEpoch(3)


def batch(
    count: int = 1,
    *,
    key: bytes | None = None,
    value: bytes = b"value",
    timestamp_ms: int = NOW_MS,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
) -> bytearray:
    """A batch of `count` equal records, one millisecond apart."""
    letters = [
        Record(timestamp_ms=TimestampMs(timestamp_ms + number), key=key, value=value)
        for number in range(count)
    ]
    return build_batch(
        letters,
        base_offset=Offset(base_offset),
        codec=codec,
        leader_epoch=LeaderEpoch(leader_epoch),
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(producer_epoch),
        base_sequence=Sequence(base_sequence),
        is_transactional=is_transactional,
    )


def log(
    files: Files,
    config: TopicConfig | None = None,
    *,
    directory: Path = DIRECTORY,
    recovery_point: int = 0,
    start_offset: int = 0,
    noted: NotedState | None = None,
    listener: LogListener | None = None,
) -> Log:
    """The log in `directory`, opened, or created when nothing is there."""
    files.make_dir(directory)
    return Log(
        TP,
        files,
        directory,
        config or TopicConfig(),
        start_offset=Offset(start_offset),
        recovery_point=Offset(recovery_point),
        now_ms=NOW_MS,
        noted=noted,
        listener=listener,
    )


def noted(log: Log) -> NotedState:
    """The log's entry in a checkpoint that is written now."""
    return NotedState(NO_UUID, log.epochs.encode(), log.flushing.state)


def enlarge(log: Log) -> None:
    """Append until the log's state is too large for a checkpoint, and lies in files."""
    while fits(log.active_segment.indexes, log.producers):
        append(log, epoch=log.epochs.latest, value=bytes(5000))


def append(log: Log, count: int = 1, *, epoch: int = EPOCH, value: bytes = b"value") -> int:
    """Append a batch as leader; return its base offset."""
    appended = log.append_as_leader(batch(count, value=value), LeaderEpoch(epoch), NOW_MS)
    return appended.base_offset
