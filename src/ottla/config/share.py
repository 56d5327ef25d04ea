"""The settings of a broker that concern share groups."""

from dataclasses import dataclass

from ottla.config.replication import ReplicationConfig
from ottla.config.setting import INT32_MAX, number, text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig(ReplicationConfig):
    """Limits of share groups; the settings of a group itself are in `GroupConfig`."""

    share_state_topic_partitions: int = number(
        "share.coordinator.state.topic.num.partitions",
        16,
        "Partitions of the internal topic of share groups, when it is created.",
        shared=True,
        low=1,
        high=INT32_MAX,
    )
    dead_letters_pending_max: int = number(
        "dlq.pending.max",
        1000,
        "How many records of a partition may wait for their dead letters in a share group; beyond"
        " that the group acquires no more of the partition until some are written.",
        low=1,
        high=10_000,
    )
    dead_letter_topic_prefix: str = text(
        "errors.deadletterqueue.topic.name.prefix",
        "dlq.",
        r"[a-zA-Z0-9._-]{0,100}",
        "the beginning of a topic's name, or nothing",
        "How names of topics must begin that share groups write dead letters to.",
        broker=None,
    )
    share_sessions_max: int = number(
        "group.share.max.share.sessions",
        2000,
        "How many consumers of share groups may have a session with a broker.",
        low=1,
        high=10_000,
    )
    share_group_size_max: int = number(
        "group.share.max.size",
        200,
        "How many members a share group may have.",
        low=1,
        high=1000,
    )
