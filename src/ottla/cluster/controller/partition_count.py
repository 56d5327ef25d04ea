"""Decisions on fewer partitions: sealed, retired, listed no more, and active again.

The partitions of a topic never become fewer in the store; `active.partitions` says how many
producers write to. Which partitions are sealed follows from it, so one key decides about all of
them at once. Where batches for a sealed partition go is written to its own key before.
"""

from dataclasses import replace

from ottla.cluster.controller.decision import Decision, find_topic, topic_changes
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import NEVER_RETIRED, PartitionImage
from ottla.config.topic import ACTIVE_PARTITIONS, ALL_PARTITIONS, TopicConfig
from ottla.errors import InvalidConfig, InvalidPartitions
from ottla.model import NO_EPOCH, LeaderEpoch, TimestampMs, TopicPartition


def with_active_count(before: TopicImage, changed: TopicImage) -> TopicImage:
    """The topic with new settings: its partitions are sealed and opened as these say.

    Decided again, because not all partitions fitted into one commit, it has the same result.
    """
    total = len(before.partitions)
    active = int(changed.config.get(ACTIVE_PARTITIONS, ALL_PARTITIONS))
    if active in {ALL_PARTITIONS, total}:
        active = total
        others = {key: text for key, text in changed.config.items() if key != ACTIVE_PARTITIONS}
        changed = replace(changed, config=others)
    if active == before.active_count:
        return changed
    _check_active(before, active)
    partitions = list(changed.partitions)
    for index in range(active, before.active_count):
        partitions[index] = _sealed(partitions[index], index % active)
    for index in range(before.active_count, active):
        partitions[index] = _reopened(partitions[index])
    listed = changed.listed
    if listed is not None:
        listed = None if active == total else max(listed, active)
    return replace(changed, partitions=tuple(partitions), listed=listed)


def _check_active(topic: TopicImage, active: int) -> None:
    if topic.is_internal:
        raise InvalidConfig(f"{topic.name!r} is internal: all of its partitions are active")
    if active > len(topic.partitions):
        raise InvalidConfig(
            f"topic {topic.name!r} has {len(topic.partitions)} partitions, so not {active} can be"
            f" active: add partitions first (`ottla topic alter {topic.name} --partitions"
            f" {active}`, CreatePartitions)"
        )


def _sealed(partition: PartitionImage, target: int) -> PartitionImage:
    forwarded_to = (*(one for one in partition.forwarded_to if one != target), target)
    if forwarded_to == partition.forwarded_to and partition.reopened_epoch == NO_EPOCH:
        return partition
    return replace(
        partition,
        forwarded_to=forwarded_to,
        reopened_epoch=NO_EPOCH,
        retired_ms=NEVER_RETIRED,
        partition_epoch=partition.partition_epoch + 1,
    )


def _reopened(partition: PartitionImage) -> PartitionImage:
    """The partition in a new leader epoch: what was forwarded in between is in none of its own."""
    if partition.reopened_epoch != NO_EPOCH:
        return partition
    epoch = LeaderEpoch(partition.leader_epoch + 1)
    return replace(
        partition,
        leader_epoch=epoch,
        reopened_epoch=epoch,
        retired_ms=NEVER_RETIRED,
        partition_epoch=partition.partition_epoch + 1,
    )


def open_sealed(image: ClusterImage, name: str, total: int) -> TopicImage:
    """The topic with its first partitions active, up to `total` or to as many as there are."""
    topic = find_topic(image, name)
    if total <= topic.active_count:
        raise InvalidPartitions(
            f"topic {name!r} has {topic.active_count} active partitions, and a request for"
            f" partitions only adds: request {topic.active_count + 1} or more, not {total}; for"
            f" fewer, set {ACTIVE_PARTITIONS}={total} (`ottla topic alter {name} --partitions"
            f" {total}`)"
        )
    config = {key: value for key, value in topic.config.items() if key != ACTIVE_PARTITIONS}
    if total < len(topic.partitions):
        config[ACTIVE_PARTITIONS] = str(total)
    return with_active_count(topic, replace(topic, config=config))


def retire(image: ClusterImage, tp: TopicPartition, now_ms: TimestampMs) -> Decision[None]:
    """Note that a sealed partition has no records any more."""
    topic = image.topics.get(tp.topic)
    if topic is None or not topic.active_count <= tp.partition < len(topic.partitions):
        return Decision((), None)
    partition = topic.partitions[tp.partition]
    if partition.retired_ms != NEVER_RETIRED or not partition.forwarded_to:
        return Decision((), None)
    partitions = list(topic.partitions)
    partitions[tp.partition] = replace(
        partition, retired_ms=now_ms, partition_epoch=partition.partition_epoch + 1
    )
    retired = replace(topic, partitions=tuple(partitions))
    return Decision(tuple(topic_changes(image, retired)), None)


def unlist(
    image: ClusterImage, name: str, config: TopicConfig, now_ms: TimestampMs
) -> Decision[None]:
    """Tell clients no more of the last partitions that have been retired for long enough."""
    topic = image.topics.get(name)
    if topic is None:
        return Decision((), None)
    listed = topic.listed_count
    while listed > topic.active_count and _is_over(topic.partitions[listed - 1], config, now_ms):
        listed -= 1
    if listed == topic.listed_count:
        return Decision((), None)
    return Decision(tuple(topic_changes(image, replace(topic, listed=listed))), None)


def _is_over(partition: PartitionImage, config: TopicConfig, now_ms: TimestampMs) -> bool:
    retired_ms = partition.retired_ms
    return retired_ms != NEVER_RETIRED and now_ms - retired_ms >= config.partition_retire_ms
