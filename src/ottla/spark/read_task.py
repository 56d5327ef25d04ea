"""Reads the ranges of one Spark task: fetches and decodes them, yields Arrow batches."""

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
from ottla.spark.blocking_client import BlockingClient
from ottla.spark.column_options import BadRows
from ottla.spark.columns import ProjectedRows, Projection
from ottla.spark.dead_letters import DeadLetters, dead_letters_of
from ottla.spark.decode import Decoder, LocatedRecords
from ottla.spark.kernel import Field, warn_if_missing
from ottla.spark.offsets import isolation_of
from ottla.spark.plan import DataLost, Task, check_lines, check_losses, find_losses
from ottla.spark.read_options import OnDataLoss, ReadOptions
from ottla.spark.topic_ids import (
    StreamTask,
    decode_ids,
    encode_ids,
    explain_change,
    id_before,
    id_key,
    note_id,
    with_ranges_from_earliest,
)

log = logging.getLogger("ottla.spark")

# Local properties of a task that name its query and micro-batch.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
ROWS_MAX: Final = 10_000  # in one Arrow batch: larger ones are not faster
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
_MARGIN: Final = 1.25  # of the bytes expected for the rest of a range


class BadRow(ValueError):
    """A value that its format cannot parse, with badRows=fail."""


def check_topics(blocking: BlockingClient, task: StreamTask, options: ReadOptions) -> Task:
    """The ranges of a task of a stream, after comparing its topics' ids with the query's.

    A topic that was deleted and created again raises `DataLost`, or is read as onDataLoss says.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        return task.ranges
    try:
        changed = blocking.submit(
            _changed_topics(blocking, task, options, query, int(batch))
        ).result()
    except Refused as problem:
        if problem.code not in _NOT_ALLOWED:
            raise
        log.warning("topic ids not stored", extra={"query": query, "reason": str(problem)})
        return task.ranges
    if not changed or options.on_data_loss is OnDataLoss.SKIP:
        return task.ranges
    wanted = {part.tp: part.offsets for part in task.ranges}
    wanted |= {tp: OffsetRange(at, at) for tp, at in task.begins.items() if tp not in wanted}
    return with_ranges_from_earliest(
        task, changed, blocking.call(lambda client: _list_edge(client, wanted, EARLIEST))
    )


async def _changed_topics(
    blocking: BlockingClient, task: StreamTask, options: ReadOptions, query: str, batch: int
) -> list[str]:
    """Topics of the task with another id than the query knows; stores the new ids."""
    unchecked = {
        topic: id_
        for topic, id_ in task.ids.items()
        if (query, topic, id_) not in blocking.checked_topic_ids
    }
    if not unchecked:
        return []
    values = await blocking.state.read(query)
    changed = list[str]()
    for topic, id_ in unchecked.items():
        known = decode_ids(values.get(id_key(query, topic)))
        before = id_before(known, batch)
        if before is not None and before != id_:
            changed.append(topic)
            what = explain_change(topic, before, id_)
            check_lines([what], options.on_data_loss)
            log.warning("data lost", extra={"query": query, "topic": topic, "what": what})
        else:
            blocking.checked_topic_ids.add((query, topic, id_))
        noted = note_id(known, batch, id_)
        if noted != known and topic in task.noted:
            await blocking.state.write(query, id_key(query, topic), encode_ids(noted))
    return changed


def read_task(
    blocking: BlockingClient, task: Task, options: ReadOptions, projection: Projection
) -> Iterator[pa.RecordBatch]:
    """Every existing record of the task's ranges that the isolation level shows."""
    warn_if_missing()
    reading = _RangeReader(blocking, options, {part.tp: part.offsets for part in task})
    topic = options.columns.dead_letter_topic
    dead_letters = None if topic is None else DeadLetters(blocking, topic)
    for rows in reading.run():
        for piece in rows.slices(ROWS_MAX, BATCH_BYTES):
            made = projection.project(piece)
            assert made.batch.num_rows == len(piece), "a row for each record"
            if made.problems is None or options.columns.bad_rows is BadRows.NULL:
                yield made.batch
            elif dead_letters is None:
                raise BadRow(_explain_first(piece, made.problems))
            else:
                yield _without_bad(piece, made, dead_letters)


def _explain_first(rows: LocatedRecords, problems: pa.Array) -> str:
    at = problems.is_valid().index(True).as_py()
    offset = rows.table[Field.OFFSET][at]
    return (
        f"{rows.tp} offset {offset}: the value cannot be parsed: {problems[at]}"
        " (badRows=null or deadLetter continues after it)"
    )


def _without_bad(
    rows: LocatedRecords, made: ProjectedRows, dead_letters: DeadLetters
) -> pa.RecordBatch:
    """The batch without its bad rows, after those are in the dead letter topic."""
    assert made.problems is not None
    is_bad = made.problems.is_valid()
    reasons = made.problems.drop_null().to_pylist()
    bad = rows.filter(is_bad.to_numpy(zero_copy_only=False))
    dead_letters.write(dead_letters_of(bad, reasons))
    return made.batch.filter(made.problems.is_null())


@dataclass(slots=True)
class _RangeReader:
    """Owns the ranges that a task has yet to read."""

    blocking: BlockingClient
    options: ReadOptions
    left: dict[TopicPartition, OffsetRange]
    decoder: Decoder = field(default_factory=Decoder)
    record_bytes: float = 0.0
    waited_s: float = 0.0  # for responses, since the last one with records

    def run(self) -> Iterator[LocatedRecords]:
        """Records by partition; each result must be consumed before the next is taken."""
        coming = self._fetch() if self.left else None
        while coming is not None:
            responses = self._responses(coming)
            coming = None
            for tp, fetched in responses.items():
                rows = self._decode(tp, fetched)
                if len(self.left) == 1 and len(responses) == 1:
                    self._check_progress()
                    # Fetch while Spark consumes these rows.
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
        return self.blocking.submit(
            fetch_round(self.blocking.client, ranges, isolation_of(self.options), limits)
        )

    def _responses(
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

    def _decode(self, tp: TopicPartition, fetched: Fetched) -> LocatedRecords:
        wanted = self.left[tp]
        try:
            rows, position = self.decoder.locate(tp, fetched, wanted)
        except ApiError as problem:
            raise Unreadable(f"{tp} from offset {wanted.start} on: {problem}") from None
        assert position >= wanted.start, "a read never goes back"
        if position > wanted.start:
            self.waited_s = 0.0
            self.record_bytes = len(fetched.batches) / (position - wanted.start)
        if position < wanted.end:
            self.left[tp] = OffsetRange(position, wanted.end)
        else:
            del self.left[tp]
        return rows

    def _skip_lost(self) -> None:
        """Find the missing offsets, and continue after them unless onDataLoss=fail."""
        starts = {tp: wanted.start for tp, wanted in self.left.items()}
        earliest = self.blocking.call(lambda client: _list_edge(client, self.left, EARLIEST))
        latest = self.blocking.call(lambda client: _list_edge(client, self.left, LATEST))
        losses = find_losses(starts, earliest, latest, self.options.reads)
        check_losses(losses, self.options.on_data_loss)
        for tp, wanted in list(self.left.items()):
            if latest[tp] < wanted.start or earliest[tp] >= wanted.end:
                del self.left[tp]
            else:
                start = Offset(max(wanted.start, earliest[tp]))
                self.left[tp] = OffsetRange(start, wanted.end)

    def _check_progress(self) -> None:
        """Give up on ranges whose records do not arrive within the timeout."""
        if self.waited_s * 1000 < self.options.brokers.timeout_ms:
            return
        missing = "; ".join(
            f"{tp}: offsets {wanted.start} to {wanted.end - 1}" for tp, wanted in self.left.items()
        )
        if self.options.on_data_loss is OnDataLoss.FAIL:
            raise DataLost(
                f"nothing came for {self.waited_s:.0f} s, and these are missing: {missing}. To"
                " continue after them set onDataLoss=skip (or failOnDataLoss=false)"
            )
        log.warning("data lost", extra={"what": missing, "waited_s": round(self.waited_s)})
        self.left.clear()


async def _list_edge(
    client: Client, wanted: dict[TopicPartition, OffsetRange], edge: int
) -> dict[TopicPartition, Offset]:
    found = await list_offsets(client, dict.fromkeys(wanted, edge))
    return {tp: at for tp, at in found.items() if at is not None}
