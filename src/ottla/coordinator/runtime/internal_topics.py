"""The topics that coordinators keep their state in: their names, and how each is created."""

from collections.abc import Sequence
from typing import Final, Protocol

from ottla.cluster.controller.topics import NewTopic
from ottla.config import BrokerConfig
from ottla.errors import ApiError

OFFSETS_TOPIC: Final = "__consumer_offsets"  # groups and their offsets
TRANSACTIONS_TOPIC: Final = "__transaction_state"  # transactional ids
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})  # only brokers write them
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
    }
    return NewTopic(
        name=name,
        partition_count=counts[name],
        config=internal_config(broker),
        is_internal=True,
    )


def internal_config(broker: BrokerConfig) -> dict[str, str]:
    """Settings of a topic that brokers write for themselves."""
    return {
        "cleanup.policy": "compact",  # a record is kept until a newer one replaces it
        "compression.type": "producer",
        "max.message.bytes": str(_RECORD_BYTES_MAX),
        "segment.bytes": str(broker.offsets_topic_segment_bytes),
    }
