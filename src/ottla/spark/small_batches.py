"""Micro-batches of few records: the planner reads them itself, and Spark needs no Python worker.

Handing a task to a Python worker and taking its rows back costs a micro-batch more time than the
fetch of a few records. Which topics a query reads, tasks compare with what the query has stored
(`topic_ids`), because the planner does not know its query. So the planner reads on only where
tasks of the same run have read from topics with the same ids.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.spark.plan import OffsetsJson
from ottla.spark.topic_ids import StreamTask

RECORDS_MAX: Final = 1000


class SmallBatches:
    """Decides which micro-batches of one run of a query its planner reads."""

    def __init__(self) -> None:
        self._checked: dict[str, str] = {}  # ids of topics, as tasks have found them
        self._planned: tuple[OffsetsJson, Mapping[str, str]] | None = None  # for tasks

    def note_finished(self, end: OffsetsJson) -> None:
        """The batch that ends here is done: its tasks have compared the ids of its topics."""
        if self._planned is not None and self._planned[0] == end:
            self._checked |= self._planned[1]
            self._planned = None

    def take(self, tasks: Sequence[StreamTask], end: OffsetsJson) -> StreamTask | None:
        """The task of a batch that the planner is to read; None if Spark's workers are."""
        if len(tasks) == 1 and self._is_small(tasks[0]) and self._is_checked(tasks[0]):
            return tasks[0]
        ids = {topic: id_ for task in tasks for topic, id_ in task.ids.items()}
        self._planned = end, ids
        return None

    @staticmethod
    def _is_small(task: StreamTask) -> bool:
        return sum(len(part.offsets) for part in task.ranges) <= RECORDS_MAX

    def _is_checked(self, task: StreamTask) -> bool:
        topics = {part.tp.topic for part in task.ranges}
        return all(
            topic in task.ids and self._checked.get(topic) == task.ids[topic] for topic in topics
        )
