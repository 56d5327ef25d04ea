"""Settings: parsed once, then true. Names at the edge are Kafka's; an unknown one is an error.

Every setting is one dataclass field that carries its own name, kind and documentation, so the
classes below are also the table that `ottla config list` prints and DescribeConfigs answers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Self

from ottla.errors import InvalidConfig

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
MIB: Final = 1 << 20
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Kind(StrEnum):
    """What a value looks like; the names are those of Kafka's ConfigType."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


class Durability(StrEnum):
    """What has happened to a record before its producer is answered."""

    FSYNC = "fsync"
    REPLICATED = "replicated"


class TimestampType(StrEnum):
    """Whose clock a record's timestamp comes from."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: how a setting is called, read and explained."""

    name: str
    kind: Kind
    doc: str
    allowed: str
    parse: Callable[[str], Any]
    broker_name: str | None = None  # a topic setting's default can be set under this name
    is_shared: bool = False  # the brokers must agree about it: not to be changed for one alone


def _integer(kind: Kind, low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must lie between {low} and {high}")
        return value

    return parse


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError("must be true or false")
    return word == "true"


def _one_of(choices: tuple[str, ...], make: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.strip() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return make(text.strip())

    return parse


def _decimal(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # nan is neither
            raise ValueError(f"must lie between {low:g} and {high:g}")
        return value

    return parse


def _some_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        words = {word.strip() for word in text.split(",")}
        if not words <= set(choices):
            raise ValueError(f"must be one or more of {', '.join(choices)}")
        return tuple(choice for choice in choices if choice in words)

    return parse


def number(
    name: str,
    default: int,
    doc: str,
    *,
    low: int = 0,
    high: int = INT64_MAX,
    broker: str = "",
    shared: bool = False,
) -> Any:
    """A field that holds a whole number."""
    kind = Kind.INT if high <= INT32_MAX else Kind.LONG
    allowed = f"{low} or more" if high in {INT32_MAX, INT64_MAX} else f"{low} to {high}"
    row = Setting(name, kind, doc, allowed, _integer(kind, low, high), broker or None, shared)
    return field(default=default, metadata={"setting": row})


def flag(name: str, default: bool, doc: str, *, broker: str = "", shared: bool = False) -> Any:
    """A field that holds true or false."""
    row = Setting(name, Kind.BOOLEAN, doc, "true, false", _boolean, broker or None, shared)
    return field(default=default, metadata={"setting": row})


def choice(
    name: str,
    default: str,
    choices: tuple[str, ...],
    doc: str,
    *,
    make: Callable[[str], Any] = str,
    kind: Kind = Kind.STRING,
    broker: str = "",
) -> Any:
    """A field that holds one of a few words."""
    row = Setting(name, kind, doc, ", ".join(choices), _one_of(choices, make), broker or None)
    return field(default=make(default), metadata={"setting": row})


def decimal(
    name: str, default: float, doc: str, *, low: float, high: float, broker: str = ""
) -> Any:
    """A field that holds a number with a fraction."""
    allowed = f"{low:g} to {high:g}"
    row = Setting(name, Kind.DOUBLE, doc, allowed, _decimal(low, high), broker or None)
    return field(default=default, metadata={"setting": row})


def several(
    name: str, default: tuple[str, ...], choices: tuple[str, ...], doc: str, *, broker: str = ""
) -> Any:
    """A field that holds one or more of a few words, separated by commas."""
    allowed = f"{', '.join(choices)}, or several"
    row = Setting(name, Kind.LIST, doc, allowed, _some_of(choices), broker or None)
    return field(default=default, metadata={"setting": row})


def ordered(name: str, default: tuple[str, ...], choices: tuple[str, ...], doc: str) -> Any:
    """The same, where it matters which comes first."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        if not set(words) <= set(choices):
            raise ValueError(f"must be one or more of {', '.join(choices)}")
        return words

    row = Setting(name, Kind.LIST, doc, f"{', '.join(choices)}, or several", parse)
    return field(default=default, metadata={"setting": row})


def settings_of(config: "type[TopicConfig | BrokerConfig]") -> Iterator[tuple[str, Setting]]:
    """Field name and row of every setting that a configuration class has."""
    for item in fields(config):
        if "setting" in item.metadata:
            yield item.name, item.metadata["setting"]


def format_value(value: object) -> str:
    """A setting's value as clients and people read it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def parse_value(row: Setting, text: str) -> Any:
    """Read one value, or say what is wrong with it."""
    try:
        return row.parse(text)
    except ValueError as problem:
        raise InvalidConfig(
            f"{row.name} = {text!r} does not work: allowed is {row.allowed} ({problem})"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What can be set per topic; the broker's settings of the same meaning are its defaults."""

    cleanup_policy: tuple[str, ...] = several(
        "cleanup.policy",
        ("delete",),
        ("compact", "delete"),
        "What happens to old segments: delete drops them by time and size, compact keeps the last"
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
        "How long compaction keeps a tombstone, so that readers learn of the deletion.",
        broker="log.cleaner.delete.retention.ms",
    )
    durability: Durability = choice(
        "durability",
        "fsync",
        ("fsync", "replicated"),
        "When a produce is acknowledged: fsync once it is on disk, replicated once it is in the"
        " page cache of the replicas that acks asks for.",
        make=Durability,
        broker="log.durability",
    )
    index_interval_bytes: int = number(
        "index.interval.bytes",
        4096,
        "How many bytes of log lie between two entries of the offset index.",
        high=INT32_MAX,
        broker="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = number(
        "max.compaction.lag.ms",
        INT64_MAX,
        "How long a record may wait for compaction, however little there is to gain by it.",
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
        "How far a CreateTime timestamp may lie in the broker's future.",
        broker="log.message.timestamp.after.max.ms",
    )
    timestamp_before_max_ms: int = number(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a CreateTime timestamp may lie in the broker's past.",
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
        "Which part of a log must be uncompacted before compaction is worth it.",
        low=0,
        high=1,
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = number(
        "min.compaction.lag.ms",
        0,
        "How long a record is safe from compaction.",
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
        "How many idempotent producers a partition remembers. Further ones take the place of those"
        " that have been silent for ten minutes, or are refused.",
        low=1,
        high=INT32_MAX,
        broker="log.max.producers",
    )
    retention_bytes: int = number(
        "retention.bytes",
        -1,
        "How large a partition may grow before its oldest segments go; -1 is no limit.",
        low=-1,
        broker="log.retention.bytes",
    )
    retention_ms: int = number(
        "retention.ms",
        14 * DAY_MS,
        "How long records are kept; -1 is for ever. Two weeks by default.",
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
        "Whether a replica that is not in sync may lead when no other can: availability for"
        " the price of lost records.",
        broker="unclean.leader.election.enable",
        shared=True,
    )

    def override(self, raw: Mapping[str, str]) -> Self:
        """These settings with some replaced, by Kafka's dotted names."""
        rows = {row.name: (name, row) for name, row in settings_of(type(self))}
        return replace(self, **_parse_all(raw, rows, "topic"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What can be set for a broker, in its TOML file or with --set."""

    topic: TopicConfig = TopicConfig()

    auto_create_topics: bool = flag(
        "auto.create.topics.enable",
        True,
        "Whether a topic that a client asks for and that does not exist is created.",
        shared=True,
    )
    auto_created_per_request_max: int = number(
        "auto.create.topics.max.per.request",
        100,
        "How many topics one request may have created that way; clients ask again for the rest.",
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
        "How long compaction rests when there is nothing to compact.",
        low=1,
    )
    cleaner_memory_bytes: int = number(
        "log.cleaner.dedupe.buffer.size",
        128 * MIB,
        "How much memory compaction may use to remember keys; with less, it takes more passes.",
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
    default_replication_factor: int = number(
        "default.replication.factor",
        1,
        "Replicas of a topic that is created without saying how many.",
        shared=True,
        low=1,
        high=32767,
    )
    delete_topic: bool = flag(
        "delete.topic.enable", True, "Whether topics may be deleted by clients.", shared=True
    )
    fetch_bytes_max: int = number(
        "fetch.max.bytes",
        55 * MIB,
        "The largest answer to one fetch, whatever the client asks for.",
        low=1024,
        high=INT32_MAX,
    )
    fetch_sessions_max: int = number(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "How many incremental fetch sessions are kept; the least used one makes room.",
        high=INT32_MAX,
    )
    fetch_wait_max_ms: int = number(
        "fetch.max.wait.ms",
        5 * MINUTE_MS,
        "The longest a fetch may wait for data, whatever the client asks for.",
        high=INT32_MAX,
    )
    readiness_stall_ms: int = number(
        "readiness.stall.ms",
        10_000,
        "After how long without progress of the disk, or of the partitions that follow the"
        " cluster, /readyz says that the broker is not ready.",
        low=100,
        high=INT32_MAX,
    )
    flush_checkpoint_interval_ms: int = number(
        "log.flush.offset.checkpoint.interval.ms",
        MINUTE_MS,
        "How often the point up to which every log is known to be on disk is written down.",
        low=100,
        high=INT32_MAX,
    )
    consumer_group_assignors: tuple[str, ...] = ordered(
        "group.consumer.assignors",
        ("uniform", "range"),
        ("uniform", "range"),
        "How the broker may share partitions among the members of a group; the first one is taken"
        " unless members wish for another.",
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
        "How often members of a group of the consumer protocol are told to send a heartbeat.",
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
        "How long a member of a group of the consumer protocol may be silent.",
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
        "How long the first rebalance of a group waits for more members, anew for each that comes.",
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
        "The longest session timeout that a member of a group may ask for.",
        high=INT32_MAX,
    )
    group_session_timeout_min_ms: int = number(
        "group.min.session.timeout.ms",
        6000,
        "The shortest session timeout that a member of a group may ask for.",
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
    idle_ms_max: int = number(
        "connections.max.idle.ms",
        10 * MINUTE_MS,
        "How long a connection may be silent before it is closed.",
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
        "How often the broker looks for committed offsets whose time is over.",
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
        "Partitions of the topic that groups are kept in, when it is created. Each is a file of its"
        " own to sync, so few of them commit together; each can be led by another broker.",
        shared=True,
        low=1,
        high=INT32_MAX,
    )
    offsets_topic_segment_bytes: int = number(
        "offsets.topic.segment.bytes",
        100 * MIB,
        "Size of a segment of the topic that groups are kept in, when it is created: small enough"
        " to be compacted often, for what was compacted is read when a broker starts.",
        low=1 * MIB,
        high=INT32_MAX,
    )
    partitions_default: int = number(
        "num.partitions",
        1,
        "Partitions of a topic that is created without saying how many.",
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
        "How long an idempotent producer that went silent is remembered.",
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
    retention_check_ms: int = number(
        "log.retention.check.interval.ms",
        5 * MINUTE_MS,
        "How often the broker looks for segments whose time is over.",
        low=10,
    )
    transaction_timeout_max_ms: int = number(
        "transaction.max.timeout.ms",
        15 * MINUTE_MS,
        "The longest time that a producer may ask to have for a transaction.",
        low=1,
        high=INT32_MAX,
    )
    transactional_id_check_ms: int = number(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        60 * MINUTE_MS,
        "How often the broker looks for transactional ids that nobody uses any more.",
        low=10,
    )
    transactional_id_expiry_ms: int = number(
        "transactional.id.expiration.ms",
        7 * DAY_MS,
        "How long a transactional id is remembered that nobody uses.",
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
        "Partitions of the topic that transactions are kept in, when it is created.",
        low=1,
        high=INT32_MAX,
    )

    scrub_bytes_per_s: int = number(
        "log.scrub.max.bytes.per.second",
        8 * MIB,
        "How fast old segments are read again to see whether the disk has kept them.",
        low=64 * 1024,
    )
    scrub_interval_ms: int = number(
        "log.scrub.interval.ms",
        7 * DAY_MS,
        "How long after the last such reading the next one begins; -1 is never.",
        low=-1,
    )

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """Read dotted names; topic defaults are known by their broker names."""
        return cls().override(raw)

    def override(self, raw: Mapping[str, str]) -> Self:
        """These settings with some replaced, by dotted names."""
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
            topic=replace(self.topic, **_parse_all(known_topic, topic, "broker")),
            **_parse_all(known_own, own, "broker"),
        )
        made._check_consumer_groups()
        return made

    def _check_consumer_groups(self) -> None:
        """Numbers that are right one by one and wrong together, as Kafka refuses them."""
        session_ms = self.consumer_group_session_timeout_ms
        interval_ms = self.consumer_group_heartbeat_interval_ms
        for name, value, low, high in (
            (
                "group.consumer.session.timeout.ms",
                session_ms,
                self.consumer_group_session_timeout_min_ms,
                self.consumer_group_session_timeout_max_ms,
            ),
            (
                "group.consumer.heartbeat.interval.ms",
                interval_ms,
                self.consumer_group_heartbeat_interval_min_ms,
                self.consumer_group_heartbeat_interval_max_ms,
            ),
        ):
            if not low <= value <= high:
                raise InvalidConfig(
                    f"{name} = {value} does not lie between {low} and {high}, which are settings"
                    " themselves"
                )
        if interval_ms >= session_ms:
            raise InvalidConfig(
                "group.consumer.heartbeat.interval.ms must be less than"
                " group.consumer.session.timeout.ms"
            )


def shared_broker_settings() -> frozenset[str]:
    """The names of broker settings that all brokers have in common."""
    topic = (row.broker_name for _, row in settings_of(TopicConfig) if row.is_shared)
    own = (row.name for _, row in settings_of(BrokerConfig) if row.is_shared)
    return frozenset(name for name in (*own, *topic) if name is not None)


def _parse_all(
    raw: Mapping[str, str], rows: Mapping[str, tuple[str, Setting]], scope: str
) -> dict[str, Any]:
    if unknown := sorted(raw.keys() - rows.keys()):
        raise InvalidConfig(
            f"unknown {scope} setting{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)};"
            " `ottla config list` shows the known ones"
        )
    return {rows[name][0]: parse_value(rows[name][1], text) for name, text in raw.items()}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A TOML document as dotted names and texts: nested tables and quoted names both work."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        elif isinstance(value, list):
            flat[prefix + key] = ",".join(map(str, value))
        else:
            flat[prefix + key] = format_value(value)
    return flat
