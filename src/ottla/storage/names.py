"""The names that Ottla gives to what lies in a data directory, as exact patterns.

A file with another name is not Ottla's: it is never removed, renamed or written.
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from ottla.model import TOPIC_NAME_LENGTH_MAX, TopicPartition, topic_name_problem

DELETED: Final = "-delete"  # of the directory of a log that was deleted, until its files are gone
STRAY: Final = "-stray"  # of the directory of a log that the store does not know
METADATA_FILE: Final = "partition.metadata"
TEMPORARY: Final = ".tmp"
SAVING: Final = ".saving"  # of an index that is written while its segment still grows
_NAME_LENGTH_MAX: Final = 255  # what file systems take
_PARTITION_MAX: Final = 2**31 - 1

_PARTITION: Final = r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})"
_UNIQUE: Final = r"\.(?P<unique>[0-9a-f]{32})"
_LOG_DIR: Final = re.compile(_PARTITION)
_STRAY_DIR: Final = re.compile(_PARTITION + _UNIQUE + STRAY)
_DELETED_DIR: Final = re.compile(r"(?P<kept>[a-zA-Z0-9._-]{1,216})" + _UNIQUE + DELETED)
_FILE: Final = re.compile(
    r"[0-9]{20}\.(log|seal|index|timeindex|txnindex)(\.cleaned|\.swap|\.deleted|\.tmp|\.saving)?"
    r"|[0-9]{20}\.log(\.swap)?\.stray(\.[0-9]{1,4})?"
    r"|[0-9]{20}\.snapshot(\.tmp)?"
    r"|(leader-epoch-checkpoint|cleaner-offset-checkpoint|partition\.metadata|corrupt-ranges)(\.tmp)?"
)
OFFSET_DIGITS: Final = 20
_OFFSET: Final = re.compile(r"[0-9]{20}")


class StrayName(NamedTuple):
    """The parts of a stray's name; the topic may have lost its end to the length limit."""

    topic: str
    partition: int
    is_cut: bool


def parse_log_dir(name: str) -> TopicPartition | None:
    """The partition that a directory belongs to by its name; None if it is no log's."""
    match = _LOG_DIR.fullmatch(name)
    if match is None or topic_name_problem(match["topic"]) is not None:
        return None
    partition = int(match["partition"])
    return TopicPartition(match["topic"], partition) if partition <= _PARTITION_MAX else None


def parse_stray(name: str) -> StrayName | None:
    """The parts of a stray's name; None if it is no stray."""
    match = _STRAY_DIR.fullmatch(name)
    if match is None or topic_name_problem(match["topic"]) is not None:
        return None
    is_cut = len(name) == _NAME_LENGTH_MAX and len(match["topic"]) < TOPIC_NAME_LENGTH_MAX
    return StrayName(match["topic"], int(match["partition"]), is_cut)


def is_deleted_dir(name: str) -> bool:
    """True when a directory is a log's, and its removal was interrupted."""
    return _DELETED_DIR.fullmatch(name) is not None


def is_log_file(name: str) -> bool:
    """True when a file of this name is one that Ottla makes in a log's directory."""
    return _FILE.fullmatch(name) is not None


def is_offset(text: str) -> bool:
    """True for an offset as file names have it: twenty digits."""
    return _OFFSET.fullmatch(text) is not None


def deleted_name(tp: TopicPartition, unique: int) -> str:
    """The name of a log's directory while it is removed."""
    return _aside_name(f"{tp.topic}", f"-{tp.partition}", unique, DELETED)


def stray_name(directory: str, taken: Collection[str]) -> str:
    """The name of a log's directory once it is set aside: the first such name that is free."""
    kept = match["kept"] if (match := _DELETED_DIR.fullmatch(directory)) else directory
    topic, dash, partition = kept.rpartition("-")
    return next(
        name
        for unique in range(len(taken) + 1)
        if (name := _aside_name(topic, dash + partition, unique, STRAY)) not in taken
    )


def _aside_name(topic: str, partition: str, unique: int, suffix: str) -> str:
    """Like Kafka's: the end of a long topic name goes, the rest stays."""
    rest = f"{partition}.{unique:032x}{suffix}"
    return topic[: _NAME_LENGTH_MAX - len(rest)] + rest
