"""The settings of a broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from ottla.config.setting import (
    DAY_MS,
    INT32_MAX,
    MIB,
    MINUTE_MS,
    choice,
    flag,
    number,
    ordered,
    parse_all,
    settings_of,
)
from ottla.config.share import ShareConfig
from ottla.config.topic import TopicConfig
from ottla.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ShareConfig):
    """The settings of a broker, in its TOML file or with --set."""

    topic: TopicConfig = TopicConfig()
    given: frozenset[str] = field(default=frozenset(), compare=False)  # names that a user has set

    auto_create_topics: bool = flag(
        "auto.create.topics.enable",
        True,
        "Whether a topic that a client requests and that does not exist is created.",
        shared=True,
    )
    auto_created_per_request_max: int = number(
        "auto.create.topics.max.per.request",
        100,
        "How many topics one request may have created that way; clients request the rest again.",
        low=1,
        high=INT32_MAX,
    )
    auto_created_per_second_max: int = number(
        "auto.create.topics.max.per.second",
        100,
        "How many topics all requests together may have created that way in a second.",
        low=1,
        high=INT32_MAX,
    )
    cleaner_backoff_ms: int = number(
        "log.cleaner.backoff.ms",
        15_000,
        "How long compaction pauses when there is nothing to compact.",
        low=1,
    )
    cleaner_memory_bytes: int = number(
        "log.cleaner.dedupe.buffer.size",
        128 * MIB,
        "How much memory compaction may use for keys; with less, it takes more passes.",
        low=64 * 1024,
    )
    connections_max: int = number(
        "max.connections",
        20_000,
        "How many connections the broker keeps; further ones are closed at once.",
        low=1,
        high=INT32_MAX,
    )
    connections_per_ip_max: int = number(
        "max.connections.per.ip",
        10_000,
        "How many connections one address may have; further ones are closed at once.",
        low=1,
        high=INT32_MAX,
    )
    delete_topic: bool = flag(
        "delete.topic.enable", True, "Whether topics may be deleted by clients.", shared=True
    )
    fetch_bytes_max: int = number(
        "fetch.max.bytes",
        55 * MIB,
        "The largest response to one fetch, whatever the client requests.",
        low=1024,
        high=INT32_MAX,
    )
    fetch_sessions_max: int = number(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "How many incremental fetch sessions are kept; the least used one is evicted.",
        high=INT32_MAX,
    )
    fetch_wait_max_ms: int = number(
        "fetch.max.wait.ms",
        5 * MINUTE_MS,
        "The longest a fetch may wait for data, whatever the client requests.",
        high=INT32_MAX,
    )
    readiness_stall_ms: int = number(
        "readiness.stall.ms",
        10_000,
        "After how long without progress of the disk, or of the partitions that follow the"
        " cluster, /readyz reports that the broker is not ready.",
        low=100,
        high=INT32_MAX,
    )
    flush_checkpoint_interval_ms: int = number(
        "log.flush.offset.checkpoint.interval.ms",
        MINUTE_MS,
        "How often the recovery points, up to which logs are known to be on disk, are written.",
        low=100,
        high=INT32_MAX,
    )
    consumer_group_assignors: tuple[str, ...] = ordered(
        "group.consumer.assignors",
        ("uniform", "range"),
        ("uniform", "range"),
        "The assignors for groups of the consumer protocol; the first one is used unless members"
        " request another.",
    )
    consumer_group_heartbeat_interval_max_ms: int = number(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The longest heartbeat interval that can be set for groups of the consumer protocol.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_heartbeat_interval_min_ms: int = number(
        "group.consumer.min.heartbeat.interval.ms",
        5000,
        "The shortest heartbeat interval that can be set for groups of the consumer protocol.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_heartbeat_interval_ms: int = number(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "How often members of a group of the consumer protocol send a heartbeat.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_migration_policy: str = choice(
        "group.consumer.migration.policy",
        "bidirectional",
        ("bidirectional", "upgrade", "downgrade", "disabled"),
        "Whether a group with members changes its protocol: from classic to consumer when the first"
        " member of the newer protocol joins, and back when the last one leaves.",
    )
    consumer_group_session_timeout_max_ms: int = number(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The longest session timeout that can be set for groups of the consumer protocol.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_session_timeout_min_ms: int = number(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "The shortest session timeout that can be set for groups of the consumer protocol.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_session_timeout_ms: int = number(
        "group.consumer.session.timeout.ms",
        45_000,
        "How long a member of a group of the consumer protocol may go without a heartbeat.",
        low=1,
        high=INT32_MAX,
    )
    consumer_group_size_max: int = number(
        "group.consumer.max.size",
        INT32_MAX,
        "How many members a group of the consumer protocol may have.",
        low=1,
        high=INT32_MAX,
    )
    group_initial_rebalance_delay_ms: int = number(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long the first rebalance of a group waits for more members, again after each join.",
        high=INT32_MAX,
    )
    group_metrics_partitions: bool = flag(
        "group.metrics.partitions.enable",
        True,
        "Whether /metrics has committed offset and lag of every group for every partition; the"
        " sums for each topic stay.",
    )
    group_metrics_series_max: int = number(
        "group.metrics.series.max",
        2000,
        "How many series of groups /metrics has at most: first those of groups, then of their"
        " topics, then of partitions, each by name; the rest is left out and counted.",
        high=INT32_MAX,
    )
    group_session_timeout_max_ms: int = number(
        "group.max.session.timeout.ms",
        30 * MINUTE_MS,
        "The longest session timeout that a member of a group may request.",
        high=INT32_MAX,
    )
    group_session_timeout_min_ms: int = number(
        "group.min.session.timeout.ms",
        6000,
        "The shortest session timeout that a member of a group may request.",
        high=INT32_MAX,
    )
    group_size_max: int = number(
        "group.max.size",
        INT32_MAX,
        "How many members a group may have.",
        low=1,
        high=INT32_MAX,
    )
    groups_max: int = number(
        "max.groups",
        50_000,
        "How many groups the broker coordinates, with or without members; a further one is"
        " refused until others are deleted or their offsets expire.",
        low=1,
        high=INT32_MAX,
    )
    internal_partition_metrics: bool = flag(
        "metrics.internal.partitions.enable",
        False,
        "Whether /metrics has offsets and sizes of every partition of internal topics; else those"
        " of a topic are one series with the partition `all`.",
    )
    idle_ms_max: int = number(
        "connections.max.idle.ms",
        10 * MINUTE_MS,
        "How long a connection may be idle before it is closed.",
        low=100,
    )
    inflight_bytes_max: int = number(
        "queued.max.request.bytes",
        128 * MIB,
        "How many bytes of unanswered requests the broker holds; beyond, it stops reading.",
        low=MIB,
    )
    offset_metadata_bytes_max: int = number(
        "offset.metadata.max.bytes",
        4096,
        "How many bytes of metadata may come with a committed offset.",
        high=INT32_MAX,
    )
    offsets_retention_check_ms: int = number(
        "offsets.retention.check.interval.ms",
        10 * MINUTE_MS,
        "How often the broker looks for expired committed offsets.",
        low=10,
    )
    offsets_retention_minutes: int = number(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "How long committed offsets are kept once a group has no members left.",
        low=1,
        high=INT32_MAX,
    )
    offsets_topic_partitions: int = number(
        "offsets.topic.num.partitions",
        16,
        "Partitions of the internal topic of groups, when it is created. Each is a file of its own"
        " to sync, so few of them commit together; each can be led by another broker.",
        shared=True,
        low=1,
        high=INT32_MAX,
    )
    offsets_topic_segment_bytes: int = number(
        "offsets.topic.segment.bytes",
        100 * MIB,
        "Size of a segment of the internal topic of groups, when it is created: small enough to be"
        " compacted often, because the compacted log is read when a broker starts.",
        low=1 * MIB,
        high=INT32_MAX,
    )
    partitions_default: int = number(
        "num.partitions",
        1,
        "Partitions of a topic that is created without a number of partitions.",
        shared=True,
        low=1,
        high=INT32_MAX,
    )
    partitions_max: int = number(
        "max.partitions",
        100_000,
        "How many partitions the whole cluster may have.",
        shared=True,
        low=1,
        high=INT32_MAX,
    )
    producer_expiry_ms: int = number(
        "producer.id.expiration.ms",
        DAY_MS,
        "How long the state of an idempotent producer is kept after its last write.",
        low=1,
        high=INT32_MAX,
    )
    plain_request_bytes_max: int = number(
        "max.plain.request.bytes",
        8 * MIB,
        "The largest request that carries no records; a larger one is refused, or closes the"
        " connection. Its elements become objects, and the broker handles each.",
        low=1024,
        high=INT32_MAX,
    )
    request_bytes_max: int = number(
        "socket.request.max.bytes",
        100 * MIB,
        "The largest request the broker reads; a larger one closes the connection.",
        low=1024,
        high=INT32_MAX,
    )
    request_elements_max: int = number(
        "max.request.elements",
        200_000,
        "How many topics, partitions, groups and other elements of arrays a request may have in"
        " all; one with more is refused, or closes the connection.",
        low=1000,
        high=INT32_MAX,
    )
    request_ms_max: int = number(
        "request.read.timeout.ms",
        30_000,
        "How long a request may take to arrive once its first byte has.",
        low=100,
        high=INT32_MAX,
    )
    partition_check_ms: int = number(
        "partition.check.interval.ms",
        10_000,
        "How often the broker looks for sealed partitions that have no records any more, or that"
        " were retired long ago.",
        low=10,
    )
    retention_check_ms: int = number(
        "log.retention.check.interval.ms",
        5 * MINUTE_MS,
        "How often the broker looks for expired segments.",
        low=10,
    )
    transaction_timeout_max_ms: int = number(
        "transaction.max.timeout.ms",
        15 * MINUTE_MS,
        "The longest transaction timeout that a producer may request.",
        low=1,
        high=INT32_MAX,
    )
    transactional_id_check_ms: int = number(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        60 * MINUTE_MS,
        "How often the broker looks for expired transactional ids.",
        low=10,
    )
    transactional_id_expiry_ms: int = number(
        "transactional.id.expiration.ms",
        7 * DAY_MS,
        "How long an unused transactional id is kept.",
        low=1,
        high=INT32_MAX,
    )
    transactional_ids_max: int = number(
        "max.transactional.ids",
        50_000,
        "How many transactional ids the broker coordinates; a further one is refused until others"
        " expire.",
        low=1,
        high=INT32_MAX,
    )
    transactions_topic_partitions: int = number(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of the internal topic of transactions, when it is created.",
        low=1,
        high=INT32_MAX,
    )

    scrub_bytes_per_s: int = number(
        "log.scrub.max.bytes.per.second",
        8 * MIB,
        "How fast old segments are read again to detect corruption.",
        low=64 * 1024,
    )
    scrub_interval_ms: int = number(
        "log.scrub.interval.ms",
        7 * DAY_MS,
        "How long after the last such scan the next one begins; -1 is never.",
        low=-1,
    )

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """Parse settings by dotted names; topic defaults by their broker names."""
        return cls().override(raw)

    def override(self, raw: Mapping[str, str]) -> Self:
        """A copy with some settings replaced, by dotted names."""
        own = {row.name: (name, row) for name, row in settings_of(type(self))}
        topic = {
            row.broker_name: (name, row)
            for name, row in settings_of(TopicConfig)
            if row.broker_name is not None
        }
        known_topic = {name: value for name, value in raw.items() if name in topic}
        known_own = {name: value for name, value in raw.items() if name not in topic}
        made = replace(
            self,
            given=self.given | raw.keys(),
            topic=replace(self.topic, **parse_all(known_topic, topic, "broker")),
            **parse_all(known_own, own, "broker"),
        )
        _check_consumer_groups(made)
        return made


def shared_broker_settings() -> frozenset[str]:
    """The names of broker settings that must be the same for all brokers."""
    topic = (row.broker_name for _, row in settings_of(TopicConfig) if row.is_shared)
    own = (row.name for _, row in settings_of(BrokerConfig) if row.is_shared)
    return frozenset(name for name in (*own, *topic) if name is not None)


def _check_consumer_groups(config: BrokerConfig) -> None:
    """Refuse values that contradict each other, as Kafka does."""
    session_ms = config.consumer_group_session_timeout_ms
    interval_ms = config.consumer_group_heartbeat_interval_ms
    for name, value, low, high in (
        (
            "group.consumer.session.timeout.ms",
            session_ms,
            config.consumer_group_session_timeout_min_ms,
            config.consumer_group_session_timeout_max_ms,
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            interval_ms,
            config.consumer_group_heartbeat_interval_min_ms,
            config.consumer_group_heartbeat_interval_max_ms,
        ),
    ):
        if not low <= value <= high:
            raise InvalidConfig(
                f"{name} = {value} is not between its limits {low} and {high}, which are"
                " settings themselves"
            )
    if interval_ms >= session_ms:
        raise InvalidConfig(
            "group.consumer.heartbeat.interval.ms must be less than"
            " group.consumer.session.timeout.ms"
        )
