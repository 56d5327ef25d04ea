"""The topics that coordinators keep their state in: their names, and how each is created."""

from collections.abc import Sequence
from typing import Final, Protocol

from ottla.cluster.controller.topics import NewTopic
from ottla.config import BrokerConfig
from ottla.errors import ApiError

OFFSETS_TOPIC: Final = "__consumer_offsets"  # groups and their offsets
TRANSACTIONS_TOPIC: Final = "__transaction_state"  # transactional ids
SHARE_STATE_TOPIC: Final = "__share_group_state"  # share partitions
INTERNAL_TOPICS: Final = frozenset(  # only brokers write them
    {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC}
)
_RECORD_BYTES_MAX: Final = 32 << 20  # a generation, or a transaction, is one record at any size


class TopicCreator(Protocol):
    """Creates topics that do not exist yet."""

    async def create_missing(self, names: Sequence[str]) -> dict[str, ApiError]:
        """Create them; returns those that could not be created, and why."""
        ...


def new_internal_topic(name: str, broker: BrokerConfig) -> NewTopic:
    """An internal topic with the partition count and settings of this broker's configuration.

    The number of its replicas follows from the cluster: see `cluster.controller.internal_replicas`.
    """
    counts = {
        OFFSETS_TOPIC: broker.offsets_topic_partitions,
        TRANSACTIONS_TOPIC: broker.transactions_topic_partitions,
        SHARE_STATE_TOPIC: broker.share_state_topic_partitions,
    }
    return NewTopic(
        name=name,
        partition_count=counts[name],
        config=internal_config(name, broker),
        is_internal=True,
    )


def internal_config(name: str, broker: BrokerConfig) -> dict[str, str]:
    """Settings of a topic that brokers write for themselves."""
    if name == SHARE_STATE_TOPIC:
        # Never compacted: of updates that follow a snapshot the last one alone would be left. The
        # share coordinator itself deletes what lies before the oldest snapshot that counts.
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    else:
        kept = {"cleanup.policy": "compact"}  # a record is kept until a newer one replaces it
    return {
        **kept,
        "compression.type": "producer",
        "max.message.bytes": str(_RECORD_BYTES_MAX),
        "segment.bytes": str(broker.offsets_topic_segment_bytes),
    }
