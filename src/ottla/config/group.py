"""The settings of a group."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from ottla.config.broker import BrokerConfig
from ottla.config.setting import (
    DAY_MS,
    INT32_MAX,
    MINUTE_MS,
    choice,
    flag,
    level,
    number,
    parse_all,
    settings_of,
    text,
)
from ottla.errors import InvalidConfig

# Java's Duration, not negative: days, hours, minutes, seconds, at least one of them.
_DURATION: Final = r"P(?=\d|T)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{0,9})?S)?)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of a group; broker settings of the same meaning are their defaults.

    Those of share and Streams groups have Kafka's default limits: no broker setting changes them.
    """

    consumer_assignment_interval_ms: int = number(
        "consumer.assignment.interval.ms",
        1000,
        "How long at least passes between two assignments of a group of the consumer protocol.",
        high=15_000,
        broker="group.consumer.assignment.interval.ms",
    )
    consumer_heartbeat_interval_ms: int = number(
        "consumer.heartbeat.interval.ms",
        5000,
        "How often members of a group of the consumer protocol send a heartbeat; between"
        " group.consumer.min.heartbeat.interval.ms and group.consumer.max.heartbeat.interval.ms.",
        low=1,
        high=INT32_MAX,
        broker="group.consumer.heartbeat.interval.ms",
    )
    consumer_session_timeout_ms: int = number(
        "consumer.session.timeout.ms",
        45_000,
        "How long a member of a group of the consumer protocol may go without a heartbeat; between"
        " group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms.",
        low=1,
        high=INT32_MAX,
        broker="group.consumer.session.timeout.ms",
    )
    dead_letter_topic: str = text(
        "errors.deadletterqueue.topic.name",
        "",
        r"(?!__)[a-zA-Z0-9._-]{0,249}",
        "the name of a topic, or nothing",
        "The topic to which a share group has records written that were delivered too often, or"
        " rejected. Its name begins with errors.deadletterqueue.topic.name.prefix of the brokers,"
        " and it has errors.deadletterqueue.group.enable=true. Nothing means none.",
        broker=None,
    )
    dead_letter_copies: bool = flag(
        "errors.deadletterqueue.copy.record.enable",
        True,
        "Whether dead letters have the key, value and headers of their records.",
    )
    share_assignment_interval_ms: int = number(
        "share.assignment.interval.ms",
        1000,
        "How long at least passes between two assignments of a share group.",
        high=15_000,
        broker="group.share.assignment.interval.ms",
    )
    share_auto_offset_reset: str = text(
        "share.auto.offset.reset",
        "latest",
        rf"latest|earliest|by_duration:{_DURATION}",
        "latest, earliest, by_duration:PnDTnHnMn.nS",
        "The offset at which a share group begins to read a partition.",
    )
    share_delivery_count_limit: int = level(
        "share.delivery.count.limit",
        5,
        "How often a record is delivered to a share group; 0 is no limit.",
        low=2,
        high=10,
        also=0,
        broker="group.share.delivery.count.limit",
    )
    share_heartbeat_interval_ms: int = number(
        "share.heartbeat.interval.ms",
        5000,
        "How often members of a share group send a heartbeat.",
        low=5000,
        high=15_000,
        broker="group.share.heartbeat.interval.ms",
    )
    share_isolation_level: str = choice(
        "share.isolation.level",
        "read_uncommitted",
        ("read_committed", "read_uncommitted"),
        "Whether a share group reads records of transactions that are not committed.",
        broker="share.isolation.level",
    )
    share_lease_durable: bool = flag(
        "share.lease.durable",
        False,
        "Whether records that a consumer of a share group has acquired stay acquired when its"
        " connection is lost or the broker restarts, until their lock ends. Each fetch then waits"
        " until that is written.",
    )
    share_ordering: str = choice(
        "share.ordering",
        "none",
        ("none", "key"),
        "Whether a share group gets records of the same key one after the other: the next one when"
        " the one before is finished.",
    )
    share_partition_max_record_locks: int = number(
        "share.partition.max.record.locks",
        2000,
        "How many records of a partition may be acquired in a share group at a time.",
        low=100,
        high=4000,
        broker="group.share.partition.max.record.locks",
    )
    share_record_lock_duration_ms: int = number(
        "share.record.lock.duration.ms",
        30_000,
        "How long a consumer of a share group keeps a record that it has acquired.",
        low=15_000,
        high=60_000,
        broker="group.share.record.lock.duration.ms",
    )
    share_renew_acknowledge_enable: bool = flag(
        "share.renew.acknowledge.enable",
        True,
        "Whether a consumer of a share group may keep an acquired record for longer.",
        broker="share.renew.acknowledge.enable",
    )
    share_retry_backoff_ms: int = number(
        "share.retry.backoff.ms",
        0,
        "How long a record waits before its second delivery to a share group, when it was released"
        " or its lock has ended. The wait is twice as long before each further delivery.",
        high=DAY_MS,
    )
    share_retry_backoff_max_ms: int = number(
        "share.retry.backoff.max.ms",
        5 * MINUTE_MS,
        "The longest of these waits; not less than share.retry.backoff.ms.",
        high=DAY_MS,
    )
    share_session_timeout_ms: int = number(
        "share.session.timeout.ms",
        45_000,
        "How long a member of a share group may go without a heartbeat.",
        low=45_000,
        high=60_000,
        broker="group.share.session.timeout.ms",
    )
    streams_assignment_interval_ms: int = number(
        "streams.assignment.interval.ms",
        1000,
        "How long at least passes between two assignments of a Streams group.",
        high=15_000,
        broker="group.streams.assignment.interval.ms",
    )
    streams_heartbeat_interval_ms: int = number(
        "streams.heartbeat.interval.ms",
        5000,
        "How often members of a Streams group send a heartbeat.",
        low=5000,
        high=15_000,
        broker="group.streams.heartbeat.interval.ms",
    )
    streams_initial_rebalance_delay_ms: int = number(
        "streams.initial.rebalance.delay.ms",
        3000,
        "How long the first assignment of a Streams group waits for more members.",
        high=INT32_MAX,
        broker="group.streams.initial.rebalance.delay.ms",
    )
    streams_num_standby_replicas: int = number(
        "streams.num.standby.replicas",
        0,
        "How many copies of its state each task of a Streams group has.",
        high=2,
        broker="group.streams.num.standby.replicas",
    )
    streams_session_timeout_ms: int = number(
        "streams.session.timeout.ms",
        45_000,
        "How long a member of a Streams group may go without a heartbeat.",
        low=45_000,
        high=60_000,
        broker="group.streams.session.timeout.ms",
    )

    @classmethod
    def of(cls, raw: Mapping[str, str], broker: BrokerConfig) -> Self:
        """A group's settings: its own by dotted names over the broker's, within its limits."""
        rows = {row.name: (name, row) for name, row in settings_of(cls)}
        made = replace(
            cls(
                consumer_heartbeat_interval_ms=broker.consumer_group_heartbeat_interval_ms,
                consumer_session_timeout_ms=broker.consumer_group_session_timeout_ms,
            ),
            **parse_all(raw, rows, "group"),
        )
        made._check_limits(broker)
        if made.share_retry_backoff_ms > made.share_retry_backoff_max_ms:
            raise InvalidConfig(
                "share.retry.backoff.ms must not be more than share.retry.backoff.max.ms"
            )
        return made

    def _check_limits(self, broker: BrokerConfig) -> None:
        interval_ms, session_ms = (
            self.consumer_heartbeat_interval_ms,
            self.consumer_session_timeout_ms,
        )
        for kind, value, low, high in (
            (
                "heartbeat.interval.ms",
                interval_ms,
                broker.consumer_group_heartbeat_interval_min_ms,
                broker.consumer_group_heartbeat_interval_max_ms,
            ),
            (
                "session.timeout.ms",
                session_ms,
                broker.consumer_group_session_timeout_min_ms,
                broker.consumer_group_session_timeout_max_ms,
            ),
        ):
            if not low <= value <= high:
                raise InvalidConfig(
                    f"consumer.{kind} = {value} is not between {low} and {high}, which are"
                    f" group.consumer.min.{kind} and group.consumer.max.{kind} of the brokers"
                )
        if interval_ms >= session_ms:
            raise InvalidConfig(
                "consumer.heartbeat.interval.ms must be less than consumer.session.timeout.ms"
            )
