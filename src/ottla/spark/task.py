"""What one Spark task does: fetch its ranges, decode them, hand Arrow batches to Spark."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from ottla.client.client import Client
from ottla.client.errors import Refused, Unreadable
from ottla.client.partitions import Fetched, FetchLimits, list_offsets
from ottla.client.reader import ReadRange, fetch_round
from ottla.errors import ApiError, ErrorCode
from ottla.model import Offset, OffsetRange, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST
from ottla.spark.blocking_client import Link
from ottla.spark.columns import Projection, Rows
from ottla.spark.dead_letters import DeadLetters
from ottla.spark.decode import Decoder, Located
from ottla.spark.kernel_read import Field
from ottla.spark.offsets import isolation_of
from ottla.spark.options import BadRows, OnDataLoss, ReadOptions
from ottla.spark.plan import DataLost, Task, check_lines, check_losses, find_losses
from ottla.spark.topic_ids import (
    StreamTask,
    decode_ids,
    encode_ids,
    explain_change,
    id_before,
    id_key,
    note_id,
    with_beginnings,
)

log = logging.getLogger("ottla.spark")

# What Spark tells a task of its query.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
ROWS_MAX: Final = 10_000  # in one Arrow batch: more gain nothing
BATCH_BYTES: Final = 8 << 20
_FETCH_BYTES_MIN: Final = 1 << 20
_FETCH_WAIT_MS: Final = 500
_NOT_ALLOWED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
    }
)
_MARGIN: Final = 1.25  # of what is expected to be left of a range


class BadRow(ValueError):
    """A value that its format cannot read, where that ends the query."""


def check_topics(link: Link, task: StreamTask, options: ReadOptions) -> Task:
    """What a task of a stream reads, once its topics are known to be those that the query knows.

    One that was made anew is `DataLost`, or read as the options say.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        return task.ranges
    try:
        changed = link.start(_changed_topics(link, task, options, query, int(batch))).result()
    except Refused as problem:
        if problem.code not in _NOT_ALLOWED:
            raise
        log.warning("topic ids not remembered", extra={"reason": str(problem)})
        return task.ranges
    if not changed or options.on_data_loss is OnDataLoss.SKIP:
        return task.ranges
    wanted = {part.tp: part.offsets for part in task.ranges}
    wanted |= {tp: OffsetRange(at, at) for tp, at in task.begins.items() if tp not in wanted}
    return with_beginnings(task, changed, link.ask(lambda client: _edge(client, wanted, EARLIEST)))


async def _changed_topics(
    link: Link, task: StreamTask, options: ReadOptions, query: str, batch: int
) -> list[str]:
    """Topics of the task that are not the ones the query knows; the new ids are remembered."""
    unchecked = {
        topic: id_ for topic, id_ in task.ids.items() if (query, topic, id_) not in link.checked
    }
    if not unchecked:
        return []
    values = await link.state.read(query)
    changed = list[str]()
    for topic, id_ in unchecked.items():
        known = decode_ids(values.get(id_key(query, topic)))
        before = id_before(known, batch)
        if before is not None and before != id_:
            changed.append(topic)
            what = explain_change(topic, before, id_)
            check_lines([what], options.on_data_loss)
            log.warning("data lost", extra={"what": what})
        else:
            link.checked.add((query, topic, id_))
        noted = note_id(known, batch, id_)
        if noted != known and topic in task.noted:
            await link.state.write(query, id_key(query, topic), encode_ids(noted))
    return changed


def read_task(
    link: Link, task: Task, options: ReadOptions, projection: Projection
) -> Iterator[pa.RecordBatch]:
    """Every record of the task's ranges that is there and may be seen."""
    reading = _Reading(link, options, {part.tp: part.offsets for part in task})
    topic = options.columns.dead_letter_topic
    dead_letters = None if topic is None else DeadLetters(link, topic)
    for rows in reading.run():
        for piece in rows.slices(ROWS_MAX, BATCH_BYTES):
            made = projection.rows_of(piece)
            if made.problems is None or options.columns.bad_rows is BadRows.NULL:
                yield made.batch
            elif dead_letters is None:
                raise BadRow(_explain_first(piece, made.problems))
            else:
                yield _without_bad(piece, made, dead_letters)


def _explain_first(rows: Located, problems: pa.Array) -> str:
    at = problems.is_valid().index(True).as_py()
    offset = rows.table[Field.OFFSET][at]
    return (
        f"{rows.tp} offset {offset}: the value cannot be read: {problems[at]}"
        " (badRows=null or deadLetter goes on behind it)"
    )


def _without_bad(rows: Located, made: Rows, dead_letters: DeadLetters) -> pa.RecordBatch:
    """The batch without its bad rows, once those are safe."""
    assert made.problems is not None
    is_bad = made.problems.is_valid()
    reasons = made.problems.drop_null().to_pylist()
    dead_letters.write(rows.only(is_bad.to_numpy(zero_copy_only=False)), reasons)
    return made.batch.filter(made.problems.is_null())


@dataclass(slots=True)
class _Reading:
    """Owns how far a task has come."""

    link: Link
    options: ReadOptions
    left: dict[TopicPartition, OffsetRange]
    decoder: Decoder = field(default_factory=Decoder)
    record_bytes: float = 0.0
    waited_s: float = 0.0  # for answers, since one of them brought anything

    def run(self) -> Iterator[Located]:
        """Records of one partition after the other; each is used up before the next comes."""
        coming = self._fetch() if self.left else None
        while coming is not None:
            answers = self._answers(coming)
            coming = None
            for tp, fetched in answers.items():
                rows = self._take(tp, fetched)
                if len(self.left) == 1 and len(answers) == 1:
                    self._check_progress()
                    # While Spark takes what is here.
                    coming = self._fetch() if self.left else None
                yield rows
            if coming is None and self.left:
                self._check_progress()
                coming = self._fetch() if self.left else None

    def _fetch(self) -> "Future[dict[TopicPartition, Fetched]]":
        ranges = {tp: ReadRange(wanted.start, wanted.end) for tp, wanted in self.left.items()}
        guess_bytes = self.record_bytes or self.options.tasks.record_bytes
        rows = max(len(wanted) for wanted in self.left.values())
        expected_bytes = int(min(rows * guess_bytes * _MARGIN, 2**31 - 1))
        partition_bytes = min(
            max(expected_bytes, _FETCH_BYTES_MIN), self.options.partition_fetch_bytes_max
        )
        limits = FetchLimits(
            wait_ms_max=_FETCH_WAIT_MS,
            bytes_max=max(self.options.fetch_bytes_max, partition_bytes),
            partition_bytes_max=partition_bytes,
        )
        return self.link.start(
            fetch_round(self.link.client, ranges, isolation_of(self.options), limits)
        )

    def _answers(
        self, coming: "Future[dict[TopicPartition, Fetched]]"
    ) -> dict[TopicPartition, Fetched]:
        began_s = time.monotonic()
        try:
            return coming.result()
        except Refused as problem:
            if problem.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
        finally:
            self.waited_s += time.monotonic() - began_s
        self._skip_lost()
        return {}

    def _take(self, tp: TopicPartition, fetched: Fetched) -> Located:
        wanted = self.left[tp]
        try:
            rows, position = self.decoder.locate(tp, fetched, wanted)
        except ApiError as problem:
            raise Unreadable(f"{tp} from offset {wanted.start} on: {problem}") from None
        if position > wanted.start:
            self.waited_s = 0.0
            self.record_bytes = len(fetched.batches) / (position - wanted.start)
        if position < wanted.end:
            self.left[tp] = OffsetRange(position, wanted.end)
        else:
            del self.left[tp]
        return rows

    def _skip_lost(self) -> None:
        """Find out what is missing, and go on behind it unless losses end the query."""
        starts = {tp: wanted.start for tp, wanted in self.left.items()}
        earliest = self.link.ask(lambda client: _edge(client, self.left, EARLIEST))
        latest = self.link.ask(lambda client: _edge(client, self.left, LATEST))
        check_losses(find_losses(starts, earliest, latest), self.options.on_data_loss)
        for tp, wanted in list(self.left.items()):
            if latest[tp] < wanted.start or earliest[tp] >= wanted.end:
                del self.left[tp]
            else:
                start = Offset(max(wanted.start, earliest[tp]))
                self.left[tp] = OffsetRange(start, wanted.end)

    def _check_progress(self) -> None:
        """A range whose end never comes must not hold a task for ever."""
        if self.waited_s * 1000 < self.options.brokers.timeout_ms:
            return
        missing = "; ".join(
            f"{tp}: offsets {wanted.start} to {wanted.end - 1}" for tp, wanted in self.left.items()
        )
        if self.options.on_data_loss is OnDataLoss.FAIL:
            raise DataLost(
                f"nothing came for {self.waited_s:.0f} s, and these are missing: {missing}. To go"
                " on behind what is missing set onDataLoss=skip (or failOnDataLoss=false)"
            )
        log.warning("data lost", extra={"what": missing})
        self.left.clear()


async def _edge(
    client: Client, wanted: dict[TopicPartition, OffsetRange], edge: int
) -> dict[TopicPartition, Offset]:
    found = await list_offsets(client, dict.fromkeys(wanted, edge))
    return {tp: at for tp, at in found.items() if at is not None}
