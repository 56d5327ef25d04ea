"""Logs that were found in a data directory, and verdicts about them."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ottla.model import TopicPartition, Uuid


class FoundLog(NamedTuple):
    """A directory that is a log's by its name, before anything in it is opened or changed.

    `topic_id` is None when `partition.metadata` does not say it; `problem` then says why.
    """

    tp: TopicPartition
    topic_id: Uuid | None
    problem: str = ""


class Fate(Enum):
    """The fate of a log that was found."""

    OPEN = 1
    DELETE = 2
    SET_ASIDE = 3


class Verdict(NamedTuple):
    """The fate of a log, why it is set aside, and the id it gets if it could not say its own."""

    fate: Fate
    reason: str = ""
    topic_id: Uuid | None = None


Judge = Callable[[FoundLog], Verdict]


def keep_known(found: FoundLog) -> Verdict:
    """Open every log that has its topic's id."""
    return Verdict(Fate.SET_ASIDE if found.topic_id is None else Fate.OPEN, found.problem)


# The topic id of a log whose directory is missing, given the id that is noted of it; None if it
# is not to be here.
Expected = Callable[[TopicPartition, Uuid | None], Uuid | None]


def expect_noted(tp: TopicPartition, topic_id: Uuid | None) -> Uuid | None:
    """Expect every log that a checkpoint names with its topic's id."""
    return topic_id
