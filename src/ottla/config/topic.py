"""The settings of a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from ottla.config.setting import (
    DAY_MS,
    INT32_MAX,
    INT64_MAX,
    MIB,
    choice,
    decimal,
    flag,
    number,
    parse_all,
    settings_of,
    several,
)


class Durability(StrEnum):
    """The guarantee for a record before its Produce response is sent."""

    FSYNC = "fsync"
    REPLICATED = "replicated"


class TimestampType(StrEnum):
    """The clock of a record's timestamp: the producer's or the broker's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of a topic; broker settings of the same meaning are their defaults."""

    cleanup_policy: tuple[str, ...] = several(
        "cleanup.policy",
        ("delete",),
        ("compact", "delete"),
        "How old segments are cleaned: delete drops them by time and size, compact keeps the last"
        " record of every key; both together do both.",
        broker="log.cleanup.policy",
    )
    compression_type: str = choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "How batches are stored; producer keeps each batch as it was sent.",
        broker="compression.type",
    )
    delete_retention_ms: int = number(
        "delete.retention.ms",
        DAY_MS,
        "How long compaction keeps a tombstone, so that readers see the deletion.",
        broker="log.cleaner.delete.retention.ms",
    )
    durability: Durability = choice(
        "durability",
        "fsync",
        ("fsync", "replicated"),
        "When a produce is acknowledged: fsync once it is on disk, replicated once it is in the"
        " page cache of the replicas that acks requires.",
        make=Durability,
        broker="log.durability",
    )
    index_interval_bytes: int = number(
        "index.interval.bytes",
        4096,
        "Bytes of log between two entries of the offset index.",
        high=INT32_MAX,
        broker="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = number(
        "max.compaction.lag.ms",
        INT64_MAX,
        "How long a record may wait for compaction, regardless of the dirty ratio.",
        low=1,
        broker="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = number(
        "max.message.bytes",
        MIB + 12,
        "The largest record batch a producer may send, as compressed by it.",
        high=INT32_MAX,
        broker="message.max.bytes",
    )
    timestamp_after_max_ms: int = number(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a CreateTime timestamp may be in the broker's future.",
        broker="log.message.timestamp.after.max.ms",
    )
    timestamp_before_max_ms: int = number(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a CreateTime timestamp may be in the broker's past.",
        broker="log.message.timestamp.before.max.ms",
    )
    timestamp_type: TimestampType = choice(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Whether records keep the producer's timestamp or get the broker's on arrival.",
        make=TimestampType,
        broker="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = decimal(
        "min.cleanable.dirty.ratio",
        0.5,
        "The uncompacted fraction of a log from which on it is compacted.",
        low=0,
        high=1,
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = number(
        "min.compaction.lag.ms",
        0,
        "How long a record is not compacted.",
        broker="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = number(
        "min.insync.replicas",
        1,
        "How many replicas must be in sync for acks=all to be accepted.",
        low=1,
        high=INT32_MAX,
        broker="min.insync.replicas",
        shared=True,
    )
    producers_max: int = number(
        "max.producers",
        10_000,
        "How many idempotent producers a partition tracks. Further ones replace those without a"
        " write for ten minutes, or are refused.",
        low=1,
        high=INT32_MAX,
        broker="log.max.producers",
    )
    retention_bytes: int = number(
        "retention.bytes",
        -1,
        "How large a partition may grow before its oldest segments are deleted; -1 is no limit.",
        low=-1,
        broker="log.retention.bytes",
    )
    retention_ms: int = number(
        "retention.ms",
        14 * DAY_MS,
        "How long records are kept; -1 is no limit. Two weeks by default.",
        low=-1,
        broker="log.retention.ms",
    )
    segment_bytes: int = number(
        "segment.bytes",
        1 << 30,
        "How large a segment file may grow before the next one begins.",
        low=1024,
        high=INT32_MAX,
        broker="log.segment.bytes",
    )
    segment_ms: int = number(
        "segment.ms",
        7 * DAY_MS,
        "How old a segment may grow before the next one begins, even if it is not full.",
        low=1,
        broker="log.roll.ms",
    )
    unclean_leader_election_enable: bool = flag(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may lead when no other can: availability at"
        " the price of lost records.",
        broker="unclean.leader.election.enable",
        shared=True,
    )

    def override(self, raw: Mapping[str, str]) -> Self:
        """A copy with some settings replaced, by Kafka's dotted names."""
        rows = {row.name: (name, row) for name, row in settings_of(type(self))}
        return replace(self, **parse_all(raw, rows, "topic"))
