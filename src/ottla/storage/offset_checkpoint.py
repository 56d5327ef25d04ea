"""Checkpoints of offsets: a line for each log, `topic partition topic_id offset`.

An offset counts for the log of that topic id only: a topic that is made again under the name of a
deleted one inherits nothing. A line without a topic id is of an older Ottla, and counts for the log
of that name.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.model import Offset, TopicPartition, Uuid, format_uuid, parse_uuid


class NotedOffset(NamedTuple):
    """An offset of a log, and the id of the topic that the log belongs to."""

    topic_id: Uuid | None  # None in a line of an older Ottla
    offset: Offset


NotedOffsets = Mapping[TopicPartition, NotedOffset]


def encode_offsets(noted: NotedOffsets) -> list[str]:
    return [
        f"{tp.topic} {tp.partition} {offset}"
        if topic_id is None
        else f"{tp.topic} {tp.partition} {format_uuid(topic_id)} {offset}"
        for tp, (topic_id, offset) in noted.items()
    ]


def decode_offsets(lines: Iterable[str]) -> dict[TopicPartition, NotedOffset]:
    """The inverse of `encode_offsets`; takes the lines of an older Ottla as well."""
    noted = {}
    for line in lines:
        topic, partition, *topic_ids, offset = line.split(" ")
        topic_id = parse_uuid(topic_ids[0]) if topic_ids else None
        noted[TopicPartition(topic, int(partition))] = NotedOffset(topic_id, Offset(int(offset)))
    return noted


def noted_offset(noted: NotedOffsets, tp: TopicPartition, topic_id: Uuid | None) -> Offset | None:
    """The offset noted for the log of this topic id; None if there is none.

    A log that does not say its topic id (None) is taken for the one that is noted.
    """
    found = noted.get(tp)
    if found is None or (found.topic_id != topic_id and None not in (found.topic_id, topic_id)):
        return None
    return found.offset
