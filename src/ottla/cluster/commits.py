"""Commits of the cluster's changes: what one of them compares, and how much fits into it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from ottla.cluster import layout
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import CommitLimits, Compare, Delete, LeaseId, Put, Write
from ottla.cluster.values import (
    BROKER_SETTINGS_KEY,
    Change,
    Making,
    PartitionImage,
    StoredSettings,
    StoredTopic,
    broker_key,
    making_key,
    parse_partition_key,
    topic_key,
)
from ottla.errors import PolicyViolation

_OTHER_BYTES: Final = 2048  # more than a value without settings ever has


def fitting(
    image: ClusterImage, changes: Sequence[Change], limits: CommitLimits
) -> Sequence[Change]:
    """As many of the changes, from the first on, as fit into one commit.

    Decisions order their changes so that each beginning of them is sound by itself. Those that
    make a topic begin with its partitions, which count only with what follows: if not all fit,
    partitions go first, announced, so that they are not taken for those of a deleted topic.
    A change that fits into no commit is refused, and with it those that it came with.
    """
    sizes_bytes = [_checked_size(change, limits) for change in changes]
    keys: set[str] = set()
    left_bytes = limits.size_bytes
    for count, change in enumerate(changes):
        keys.update(_compared(image, change))
        left_bytes -= sizes_bytes[count]
        if count + 1 > limits.writes or len(keys) > limits.compares or left_bytes < 0:
            first = changes[: max(count - 1, 1)]  # one less than fits, for the announcement
            leading = list(takewhile(_is_partition, first))
            return _announced(image, changes, leading or first)
    return changes


def fits(image: ClusterImage, changes: Sequence[Change], limits: CommitLimits) -> bool:
    """True if all of the changes fit into one commit."""
    return len(fitting(image, changes, limits)) == len(changes)


def compares(image: ClusterImage, changes: Iterable[Change]) -> list[Compare]:
    """Conditions of a commit: nothing that the decision rests on has changed.

    Those are the written keys, the topic of a partition with the settings of all brokers, which
    say how many replicas have to be in sync, and the registrations of the brokers in its ISR: else
    a broker could join an ISR after it was removed from all of them. Likewise those of the brokers
    that become replicas: one that has died may have been removed from the cluster.
    """
    keys = {key for change in changes for key in _compared(image, change)}
    return [Compare(key, image.mod_revision(key)) for key in sorted(keys)]


def writes(changes: Iterable[Change], leases: Mapping[str, LeaseId]) -> list[Write]:
    """The changes for the store; keys in `leases` are written under these."""
    return [
        Delete(change.key)
        if change.value is None
        else Put(change.key, layout.encode(change.key, change.value), leases.get(change.key))
        for change in changes
    ]


def _compared(image: ClusterImage, change: Change) -> list[str]:
    if not isinstance(change.value, PartitionImage):
        return [change.key]
    topic_id, _ = parse_partition_key(change.key)
    name = image.topic_names.get(topic_id)
    owner = making_key(topic_id) if name is None else topic_key(name)
    brokers = {*change.value.isr, *change.value.adding}
    return [change.key, owner, BROKER_SETTINGS_KEY, *map(broker_key, sorted(brokers))]


def _checked_size(change: Change, limits: CommitLimits) -> int:
    """At least the bytes that a change needs; only settings can be many."""
    match change.value:
        case StoredTopic(config=settings) | StoredSettings(settings) if settings:
            size_bytes = len(change.key) + len(layout.encode(change.key, change.value))
        case _:
            return _OTHER_BYTES
    if size_bytes > limits.size_bytes:
        raise PolicyViolation(
            f"the settings of {change.key} are too large for the coordination store, which"
            f" takes {limits.size_bytes} bytes at a time: give fewer, or shorter ones"
        )
    return size_bytes


def _is_partition(change: Change) -> bool:
    return isinstance(change.value, PartitionImage)


def _announced(
    image: ClusterImage, changes: Sequence[Change], first: Sequence[Change]
) -> Sequence[Change]:
    """The first changes, and with them the mark of what is being made, if it is not there yet."""
    topic = next((one.value for one in changes if isinstance(one.value, StoredTopic)), None)
    if topic is None or topic.id in image.making or not _is_partition(first[0]):
        return first
    known = image.topics.get(topic.name)
    if known is not None and len(known.partitions) == topic.partition_count:
        return first  # no partition is new, so each counts by itself
    making = Making(topic.id, topic.name, topic.partition_count)
    return (Change(making_key(topic.id), making), *first)
