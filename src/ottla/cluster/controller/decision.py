"""Decisions on the cluster: the changes to commit, and the result to return once they are."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ottla.cluster.image import (
    Change,
    ClusterImage,
    ImageDraft,
    PartitionImage,
    TopicImage,
    topic_key,
)
from ottla.errors import (
    ApiError,
    UnknownTopicOrPartition,
)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Result]):
    """The changes to commit, and the result to return after the commit."""

    changes: tuple[Change, ...]
    result: Result


def decide_each(
    image: ClusterImage, decides: Iterable[Callable[[ClusterImage], Decision[Result]]]
) -> Decision[tuple[Result | ApiError, ...]]:
    """Many requests in one commit: each sees the changes of those before it.

    A refused request changes nothing. The result has, in order, each request's result or its error.
    """
    draft = ImageDraft(image)
    seen = image
    merged: dict[str, Change] = {}
    results: list[Result | ApiError] = []
    for decide in decides:
        try:
            decision = decide(seen)
        except ApiError as error:
            results.append(error)
            continue
        for change in decision.changes:
            draft.apply(change, image.revision)
            merged[change.key] = change
        seen = draft.at(image.revision)
        results.append(decision.result)
    return Decision(tuple(merged.values()), tuple(results))


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    if (topic := image.topics.get(name)) is None:
        raise UnknownTopicOrPartition(f"unknown topic {name!r}: create it, or list the topics")
    return topic


def topic_change(topic: TopicImage) -> Change:
    return Change(topic_key(topic.name), topic)


def changed_topics(image: ClusterImage, topics: Iterable[TopicImage]) -> tuple[Change, ...]:
    return tuple(topic_change(topic) for topic in topics if topic is not image.topics[topic.name])


def with_partition(topic: TopicImage, index: int, partition: PartitionImage) -> TopicImage:
    if partition == topic.partitions[index]:
        return topic
    partitions = (*topic.partitions[:index], partition, *topic.partitions[index + 1 :])
    return replace(topic, partitions=partitions)
