"""The settings of a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from ottla.config.setting import (
    DAY_MS,
    INT32_MAX,
    INT64_MAX,
    MIB,
    MINUTE_MS,
    choice,
    decimal,
    flag,
    level,
    matching,
    never,
    number,
    number_or_all,
    parse_all,
    settings_of,
    several,
)

_REPLICAS: Final = r"(\*|\d+:\d+(,\d+:\d+)*)?"
_REPLICAS_ALLOWED: Final = "*, or PARTITION:BROKER, or several"


ACTIVE_PARTITIONS: Final = "active.partitions"
ALL_PARTITIONS: Final = -1
DELAY_ENABLE: Final = "delay.enable"


class DropWhen(StrEnum):
    """When the records of a sealed partition go."""

    EXPIRED = "expired"
    READ = "read"


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

    active_partitions: int = number_or_all(
        ACTIVE_PARTITIONS,
        ALL_PARTITIONS,
        "How many partitions producers write to; -1 is all. The others are sealed: they can be"
        " read, what is sent to them goes to the active ones, and once empty they are no longer"
        " listed.",
    )
    cleanup_policy: tuple[str, ...] = several(
        "cleanup.policy",
        ("delete",),
        ("compact", "delete"),
        "How old segments are cleaned: delete drops them by time and size, compact keeps the last"
        " record of every key; both together do both, and none keeps everything.",
        broker="log.cleanup.policy",
    )
    compression_gzip_level: int = level(
        "compression.gzip.level",
        -1,
        "The level at which the broker compresses with gzip, where compression.type is gzip;"
        " -1 is gzip's own default.",
        low=1,
        high=9,
        also=-1,
    )
    compression_lz4_level: int = number(
        "compression.lz4.level",
        9,
        "The level at which the broker compresses with lz4, where compression.type is lz4.",
        low=1,
        high=17,
        broker="compression.lz4.level",
    )
    compression_zstd_level: int = number(
        "compression.zstd.level",
        3,
        "The level at which the broker compresses with zstd, where compression.type is zstd.",
        low=-131_072,
        high=22,
        broker="compression.zstd.level",
    )
    compression_type: str = choice(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "How batches are stored; producer keeps each batch as it was sent.",
        broker="compression.type",
    )
    deletes_acknowledged: bool = flag(
        "delete.acknowledged",
        False,
        "Whether records are deleted once every share group has finished them, as in a queue. While"
        " no share group reads a partition, and on a compacted topic, nothing is.",
    )
    delay_enable: bool = flag(
        DELAY_ENABLE,
        False,
        "Whether records may wait: those with a header ottla.deliver-at, ottla.delay-ms or"
        " ottla.cron are delivered when they are due. False takes no new ones; what waits already"
        " is still delivered. Not with cleanup.policy=compact.",
    )
    delay_max_ms: int = number(
        "delay.max.ms",
        366 * DAY_MS,
        "How far in the future a record may be due.",
        low=1,
    )
    delay_pending_max: int = number(
        "delay.pending.max",
        1_000_000,
        "How many records may wait in a partition; each takes 32 bytes of memory.",
        low=1,
        high=INT32_MAX,
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
    takes_dead_letters: bool = flag(
        "errors.deadletterqueue.group.enable",
        False,
        "Whether share groups may write dead letters to the topic.",
    )
    file_delete_delay_ms: int = number(
        "file.delete.delay.ms",
        MINUTE_MS,
        "How long a file that is no longer needed stays on disk.",
        broker="log.segment.delete.delay.ms",
    )
    flush_messages: int = number(
        "flush.messages",
        INT64_MAX,
        "After how many records a log is synced.",
        low=1,
        broker="log.flush.interval.messages",
    )
    flush_ms: int = number(
        "flush.ms",
        INT64_MAX,
        "How long a record may wait until its log is synced.",
        broker="log.flush.interval.ms",
    )
    follower_throttled_replicas: tuple[str, ...] = matching(
        "follower.replication.throttled.replicas",
        _REPLICAS,
        _REPLICAS_ALLOWED,
        "Replicas whose followers' copying is throttled.",
    )
    leader_throttled_replicas: tuple[str, ...] = matching(
        "leader.replication.throttled.replicas",
        _REPLICAS,
        _REPLICAS_ALLOWED,
        "Replicas whose leaders' serving of followers is throttled.",
    )
    index_interval_bytes: int = number(
        "index.interval.bytes",
        4096,
        "Bytes of log between two entries of the offset index.",
        high=INT32_MAX,
        broker="log.index.interval.bytes",
    )
    local_retention_bytes: int = number(
        "local.retention.bytes",
        -2,
        "Bytes of a tiered partition that stay on the broker's disk; -2 is retention.bytes.",
        low=-2,
        broker="log.local.retention.bytes",
    )
    local_retention_ms: int = number(
        "local.retention.ms",
        -2,
        "How long records of a tiered topic stay on the broker's disk; -2 is retention.ms.",
        low=-2,
        broker="log.local.retention.ms",
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
    partition_drain_ms: int = number(
        "partition.drain.ms",
        10 * MINUTE_MS,
        "How long a sealed partition stays as it is at least: as long as a producer may repeat a"
        " batch that it sent before.",
    )
    partition_drop_when: DropWhen = choice(
        "partition.drop.when",
        "expired",
        ("expired", "read"),
        "When the records of a sealed partition go: with retention, or as soon as every group that"
        " has offsets of the topic has committed their end.",
        make=DropWhen,
    )
    partition_retire_ms: int = number(
        "partition.retire.ms",
        DAY_MS,
        "How long a sealed partition without records is still listed.",
    )
    preallocate: bool = flag(
        "preallocate",
        False,
        "Whether a segment file is allocated as a whole when it is begun.",
        broker="log.preallocate",
    )
    remote_log_copy_disable: bool = flag(
        "remote.log.copy.disable", False, "Whether a tiered topic copies no more segments."
    )
    remote_log_delete_on_disable: bool = flag(
        "remote.log.delete.on.disable",
        False,
        "Whether tiered segments are deleted when tiered storage is disabled for a topic.",
    )
    remote_storage_enable: bool = never(
        "remote.storage.enable",
        "Whether a topic uses tiered storage.",
        "there is no tiered storage: leave it out, or set it to false",
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
    segment_index_bytes: int = number(
        "segment.index.bytes",
        10 * MIB,
        "How large the index files of a segment may grow.",
        low=4,
        high=INT32_MAX,
        broker="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = number(
        "segment.jitter.ms",
        0,
        "By how much at most a segment may end before segment.ms, so that the segments of many"
        " partitions do not all end at once.",
        broker="log.roll.jitter.ms",
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

    # Records may wait in the topic: delay.enable is true, or was once. Nothing sets it directly.
    may_wait: bool = False

    def override(self, raw: Mapping[str, str]) -> Self:
        """A copy with some settings replaced, by Kafka's dotted names."""
        rows = {row.name: (name, row) for name, row in settings_of(type(self))}
        may_wait = self.may_wait or DELAY_ENABLE in raw
        return replace(self, **parse_all(raw, rows, "topic"), may_wait=may_wait)
