"""Ids of the topics that a query reads, to notice a topic that was deleted and created again.

Offsets do not show it: those of the new topic may have grown past the query's. Spark keeps offsets
in the format of its Kafka connector, which has no field for ids, and gives a source neither its
query nor its checkpoint. Tasks know their query, so tasks store the ids by query (`state_topic`)
and compare them.

Stored for a topic is a list of (number of a micro-batch, id): from that batch on the topic has had
this id.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.model import OffsetRange
from ottla.spark.plan import Offsets, Task, TaskRange

Ids = tuple[tuple[int, str], ...]

IDS_MAX: Final = 8
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTask:
    """The ranges that one task of a stream reads, and the topic ids that it checks and stores."""

    ranges: Task
    ids: Mapping[str, str]  # of its topics, when the batch was planned
    noted: frozenset[str]  # topics whose ids this task stores, for all tasks
    begins: Offsets  # start offsets of the batch in partitions that this task checks


def assign_topic_checks(
    tasks: Sequence[Task], start: Offsets, end: Offsets, ids: Mapping[str, str]
) -> list[StreamTask]:
    """Assign every partition that was read before to one task: the one that continues at the
    query's offset, or, if there are no new records in it, the first that reads its topic."""
    read = {part.tp for task in tasks for part in task}
    noted = set[str]()
    planned = list[StreamTask]()
    for task in tasks:
        topics = {part.tp.topic for part in task}
        goes_on = [part.tp for part in task if start.get(part.tp) == part.offsets.start]
        idle = [
            tp
            for tp, at in start.items()
            if tp.topic in topics - noted and tp not in read and end.get(tp) == at
        ]
        planned.append(
            StreamTask(
                ranges=task,
                ids={topic: ids[topic] for topic in topics if topic in ids},
                noted=frozenset(topics - noted),
                begins={tp: start[tp] for tp in (*goes_on, *idle)},
            )
        )
        noted |= topics
    return planned


def with_ranges_from_earliest(task: StreamTask, topics: Iterable[str], earliest: Offsets) -> Task:
    """The ranges of a task if these topics are to be read from their earliest offsets."""
    ranges = {part.tp: part.offsets for part in task.ranges}
    for tp, at in task.begins.items():
        if tp.topic in topics and tp in earliest and earliest[tp] < at:
            last = ranges[tp].end if tp in ranges else at
            ranges[tp] = OffsetRange(earliest[tp], last)
    return tuple(TaskRange(tp, offsets) for tp, offsets in ranges.items())


def id_key(query: str, topic: str) -> bytes:
    """The key of the ids of a topic that a query reads."""
    return f"source {query} {topic}".encode()


def encode_ids(ids: Ids) -> bytes:
    """The ids of a topic as JSON."""
    return json.dumps({"format": _FORMAT, "ids": ids}).encode()


def decode_ids(value: bytes | None) -> Ids:
    """The inverse of `encode_ids`; empty for another format, of a later version."""
    if value is None:
        return ()
    try:
        found = json.loads(value)
        if found["format"] != _FORMAT:
            return ()
        return tuple((int(batch), str(id_)) for batch, id_ in found["ids"])
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"ids of a topic cannot be read ({problem}): {value[:200]!r}") from None


def id_before(ids: Ids, batch: int) -> str | None:
    """The id that a batch expects: that of the batch before, or that of its own first run."""
    earlier = [id_ for since, id_ in ids if since < batch]
    begun = [id_ for since, id_ in ids if since == batch]
    return next(iter([*reversed(earlier), *begun]), None)


def note_id(ids: Ids, batch: int, id_: str) -> Ids:
    """The ids to store when a batch reads a topic with this id."""
    earlier = [(since, one) for since, one in ids if since < batch]
    before = id_before(ids, batch)
    if before is not None and not earlier and before != id_:
        earlier = [(batch - 1, before)]  # so that a repeated batch finds the change again
    if earlier and earlier[-1][1] == id_:
        return tuple(earlier)
    return (*earlier, (batch, id_))[-IDS_MAX:]


def explain_change(topic: str, before: str, now: str) -> str:
    """The message about a topic with another id."""
    return (
        f"topic {topic} was deleted and created again: its id was {before} and is {now}. Unread"
        " records of the old one are lost, and the offsets of this query mean other records now"
    )
