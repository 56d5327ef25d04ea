"""Which topic a query has been reading: one that is deleted and made anew has another id.

Offsets say nothing of it: those of the new topic may have grown past where the query was. Spark
keeps offsets in the shape of its Kafka connector, which has no room for ids, and tells a source
neither its query nor its checkpoint. Tasks know their query, so what is remembered (`state`) is
remembered by query, written and compared by tasks.

What is remembered of a topic is a list of (number of a micro-batch, id): from that batch on the
topic has had this id.
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
    """What one task of a stream reads, and what it has to see to."""

    ranges: Task
    ids: Mapping[str, str]  # of its topics, when the batch was planned
    noted: frozenset[str]  # topics whose ids this task remembers, on behalf of all tasks
    begins: Offsets  # where the batch begins in the partitions that this task reads first


def assign_topic_checks(
    tasks: Sequence[Task], start: Offsets, end: Offsets, ids: Mapping[str, str]
) -> list[StreamTask]:
    """Give every partition that was read before to one task: the one that goes on where the query
    was, or, if there is nothing new in it, the first that reads its topic."""
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
    """What a task reads if these topics are to be read from their beginning."""
    ranges = {part.tp: part.offsets for part in task.ranges}
    for tp, at in task.begins.items():
        if tp.topic in topics and tp in earliest and earliest[tp] < at:
            last = ranges[tp].end if tp in ranges else at
            ranges[tp] = OffsetRange(earliest[tp], last)
    return tuple(TaskRange(tp, offsets) for tp, offsets in ranges.items())


def id_key(query: str, topic: str) -> bytes:
    """Where the ids of a topic are kept that a query reads."""
    return f"source {query} {topic}".encode()


def encode_ids(ids: Ids) -> bytes:
    """What is remembered of a topic as JSON."""
    return json.dumps({"format": _FORMAT, "ids": ids}).encode()


def decode_ids(value: bytes | None) -> Ids:
    """The inverse of `encode_ids`; nothing is known of what a later version has written."""
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
    """The topic that a batch should find: the one before it, or the one it has begun with."""
    earlier = [id_ for since, id_ in ids if since < batch]
    begun = [id_ for since, id_ in ids if since == batch]
    return next(iter([*reversed(earlier), *begun]), None)


def note_id(ids: Ids, batch: int, id_: str) -> Ids:
    """What is to be remembered when a batch reads a topic with this id."""
    earlier = [(since, one) for since, one in ids if since < batch]
    before = id_before(ids, batch)
    if before is not None and not earlier and before != id_:
        earlier = [(batch - 1, before)]  # so that the batch, repeated, finds the change again
    if earlier and earlier[-1][1] == id_:
        return tuple(earlier)
    return (*earlier, (batch, id_))[-IDS_MAX:]


def explain_change(topic: str, before: str, now: str) -> str:
    """One sentence for people."""
    return (
        f"topic {topic} was deleted and made anew: its id was {before} and is {now}. What was not"
        " read of the old one is lost, and the offsets of this query mean other records now"
    )
