"""The settings of a broker that concern its peers."""

from dataclasses import dataclass

from ottla.config.setting import INT32_MAX, MIB, NumberOrAuto, choice, flag, number, number_or_auto


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How a broker follows others, and when they take over."""

    broker_session_timeout_ms: int = number(
        "broker.session.timeout.ms",
        6000,
        "How long other brokers wait for one that is not heard of, before they take over.",
        low=2000,
        high=INT32_MAX,
    )
    default_replication_factor: NumberOrAuto = number_or_auto(
        "default.replication.factor",
        "Replicas of a topic that is created without a number of replicas; `auto`: as many as there"
        " are machines with live brokers then, at most 3.",
        low=1,
        high=32767,
        shared=True,
    )
    offsets_topic_replication_factor: NumberOrAuto = number_or_auto(
        "offsets.topic.replication.factor",
        "Replicas of the internal topic of groups; `auto`: as many as there are machines with live"
        " brokers, at most 3. It gets more when brokers come.",
        low=1,
        high=32767,
        shared=True,
    )
    transactions_topic_replication_factor: NumberOrAuto = number_or_auto(
        "transaction.state.log.replication.factor",
        "Replicas of the internal topic of transactions, as for groups.",
        low=1,
        high=32767,
        shared=True,
    )
    share_state_topic_replication_factor: NumberOrAuto = number_or_auto(
        "share.coordinator.state.topic.replication.factor",
        "Replicas of the internal topic of share groups, as for groups.",
        low=1,
        high=32767,
        shared=True,
    )
    catch_up_bytes_per_s: int = number(
        "replication.catchup.bytes.per.s",
        0,
        "How many bytes a second this broker fetches for its replicas that are not in sync, all"
        " together; 0 is no limit.",
    )
    replica_lag_time_max_ms: int = number(
        "replica.lag.time.max.ms",
        10_000,
        "How long a follower may be behind its leader before it leaves the in-sync replicas.",
        low=100,
        high=INT32_MAX,
        shared=True,
    )
    replica_fetch_wait_max_ms: int = number(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader lets a follower wait for records.",
        low=1,
        high=60_000,
    )
    replica_fetch_response_max_bytes: int = number(
        "replica.fetch.response.max.bytes",
        10 * MIB,
        "How many bytes a follower fetches from a leader at once.",
        low=1024,
        high=INT32_MAX,
    )
    replica_selector: str = choice(
        "replica.selector",
        "leader",
        ("leader", "rack"),
        "Where consumers read: from the leader, or, if they say in which rack they are, from an"
        " in-sync replica in that rack.",
        shared=True,
    )
    reassignment_concurrent_max: int = number(
        "reassignment.concurrent.max",
        10,
        "How many partitions move at a time when a broker is drained or the cluster rebalanced.",
        low=1,
        high=10_000,
        shared=True,
    )
    auto_leader_rebalance_enable: bool = flag(
        "auto.leader.rebalance.enable",
        True,
        "Whether the first replica of a partition leads it again, once no broker has come or gone"
        " for a minute and it is in sync.",
        shared=True,
    )
