"""Leader hints (KIP-951): a client that asked the wrong broker learns from the error who leads.

So it goes on at once, where it would otherwise wait for the metadata of the whole topic.
"""

from typing import Final

from ottla.cluster.image import ClusterImage
from ottla.errors import ErrorCode
from ottla.model import TopicPartition, Uuid
from ottla.protocol.hot_fields import LeaderHint, TopicKey

HINTED_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def leader_hint(image: ClusterImage, key: TopicKey, index: int) -> LeaderHint | None:
    """The leader of a partition, and where it is; None if there is none that runs."""
    name = image.topic_names.get(Uuid(key)) if isinstance(key, bytes) else key
    partition = image.partition(TopicPartition(name, index)) if name is not None else None
    if partition is None or partition.leader is None:
        return None
    broker = image.brokers.get(partition.leader)
    if broker is None:
        return None
    endpoint = broker.endpoint
    return LeaderHint(broker.id, partition.leader_epoch, endpoint.host, endpoint.port, broker.rack)
