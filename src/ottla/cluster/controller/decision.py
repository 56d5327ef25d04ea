"""Decisions on the cluster: the changes to commit, and the result to return once they are."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.cluster.image import ClusterImage, ImageDraft, TopicImage
from ottla.cluster.values import Change, StoredTopic, partition_key, topic_key
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
    image: ClusterImage,
    decides: Iterable[Callable[[ClusterImage], Decision[Result]]],
    *,
    fits: Callable[[Sequence[Change]], bool] = lambda _changes: True,
) -> Decision[tuple[Result | ApiError, ...]]:
    """Many requests in one commit: each sees the changes of those before it.

    A refused request changes nothing. The result has, in order, each request's result or its error;
    it is shorter when the changes of the next request would no longer fit.
    """
    draft = ImageDraft(image)
    seen = image
    merged: dict[str, Change] = {}
    results: list[Result | ApiError] = []
    for decide in decides:
        try:
            decision = decide(seen)
            wanted = merged | {change.key: change for change in decision.changes}
            is_fitting = fits(tuple(wanted.values()))
        except ApiError as error:
            results.append(error)
            continue
        if merged and not is_fitting:
            break
        merged = wanted
        for change in decision.changes:
            draft.apply(change, image.revision)
        seen = draft.at(image.revision)
        results.append(decision.result)
    return Decision(tuple(merged.values()), tuple(results))


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    if (topic := image.topics.get(name)) is None:
        raise UnknownTopicOrPartition(f"unknown topic {name!r}: create it, or list the topics")
    return topic


def stored_topic(topic: TopicImage) -> StoredTopic:
    return StoredTopic(
        topic.name,
        topic.id,
        len(topic.partitions),
        topic.config,
        topic.is_internal,
        topic.listed,
    )


def topic_changes(image: ClusterImage, topic: TopicImage) -> Iterator[Change]:
    """The keys in which a topic differs from the image's, or all if it is new; its own last."""
    old = image.topics.get(topic.name)
    known = () if old is None else old.partitions
    for index, partition in enumerate(topic.partitions):
        if index >= len(known) or partition is not known[index]:
            yield Change(partition_key(topic.id, index), partition)
    if old is None or stored_topic(old) != stored_topic(topic):
        yield Change(topic_key(topic.name), stored_topic(topic))
