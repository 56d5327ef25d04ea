"""A store that was restored from an older copy: how images show it, though revisions may rise.

Restoring can raise revisions, so they alone do not tell. Epochs of partitions and members never
fall, and the cluster keeps its id.
"""

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.store import StoreUnavailable


class StoreRestored(StoreUnavailable):
    """The store holds an older state than the one that was seen: it must not be followed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the coordination store was restored from an older copy: {reason}. Bring back its"
            " newer data, then restart the brokers"
        )


def check_later(known: ClusterImage, found: ClusterImage) -> None:
    """Raise StoreRestored unless `found` can be a later state of the same store."""
    if found.cluster_id != known.cluster_id:
        raise StoreRestored(
            f"it is that of cluster {found.cluster_id or '(none)'}, and was that of cluster"
            f" {known.cluster_id}"
        )
    for broker, member in known.members.items():
        now = found.members.get(broker)
        if now is None:
            continue
        if (now.epoch, now.generation) < (member.epoch, member.generation):
            raise StoreRestored(
                f"broker {broker} is at epoch {now.epoch}.{now.generation}, and was at"
                f" {member.epoch}.{member.generation}"
            )
    for name, topic in known.topics.items():
        later = found.topics.get(name)
        if later is not None and later is not topic and later.id == topic.id:
            _check_topic(topic, later)


def _check_topic(known: TopicImage, found: TopicImage) -> None:
    for index, before in enumerate(known.partitions):
        if index >= len(found.partitions):
            raise StoreRestored(
                f"{known.name} has {len(found.partitions)} partitions, and had"
                f" {len(known.partitions)}"
            )
        after = found.partitions[index]
        for kind, now, was in (
            ("leader", after.leader_epoch, before.leader_epoch),
            ("partition", after.partition_epoch, before.partition_epoch),
        ):
            if now < was:
                raise StoreRestored(
                    f"{known.name}-{index} is at {kind} epoch {now}, and was at {was}"
                )
