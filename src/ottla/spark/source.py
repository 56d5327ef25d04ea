"""Readers of `format("ottla")`: batches and streams on Spark's Python Data Source API.

Spark makes several readers for one query, in several processes: one plans, and its copies read in
tasks. So a reader holds options only, and gets its client from `client_for`.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ottla.client.errors import ClientError
from ottla.client.group_offsets import commit_offsets, committed_offsets
from ottla.clock import SystemClock
from ottla.model import Offset, TopicPartition
from ottla.spark.blocking_client import BlockingClient, client_for
from ottla.spark.columns import projection_of
from ottla.spark.kernel import warn_if_missing
from ottla.spark.offset_bounds import Edge, FromTime
from ottla.spark.offsets import (
    LogEdges,
    find_log_edges,
    measure_record_bytes,
    resolve_end,
    resolve_start,
    topic_ids_of,
    wait_for_records,
)
from ottla.spark.plan import (
    DataLost,
    Offsets,
    OffsetsJson,
    check_losses,
    find_losses,
    from_json,
    is_enough,
    limit,
    next_starts,
    plan_tasks,
    ranges_between,
    to_json,
)
from ottla.spark.pushdown import RecordBounds, bounds_of_filters
from ottla.spark.read_options import OnDataLoss, ReadOptions, parse_read_options
from ottla.spark.read_task import check_topics, read_task
from ottla.spark.registry import resolve_columns
from ottla.spark.small_batches import SmallBatches
from ottla.spark.topic_ids import assign_topic_checks

log = logging.getLogger("ottla.spark")

_COMMIT_TIMEOUT_S: Final = 5.0  # the checkpoint decides, not the group: a batch does not wait
_COMMIT_PAUSE_S: Final = 30.0  # after a failed commit


def batch_reader(raw: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader behind `spark.read`."""
    warn_if_missing()
    options = _options(raw, is_stream=False)
    if options.pushes_filters:
        return PushdownBatchReader(options, schema)
    return BatchReader(options, schema)


def stream_reader(raw: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader behind `spark.readStream`."""
    warn_if_missing()
    options = _options(raw, is_stream=True)
    return StreamReader(options, schema)


def _options(raw: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    options = parse_read_options(raw, is_stream=is_stream, now_ms=SystemClock().now_ms())
    return replace(options, columns=resolve_columns(options.columns))


class BatchReader(DataSourceReader):
    """Reads from one set of offsets to another, once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.projection = projection_of(schema, options.columns)
        self.bounds = RecordBounds()

    def partitions(self) -> list[InputPartition]:
        blocking = client_for(self.options.brokers)
        edges = blocking.call(lambda client: find_log_edges(client, self.options))
        start = blocking.call(lambda client: resolve_start(client, self.options))
        end = blocking.call(lambda client: resolve_end(client, self.options))
        losses = find_losses(start, edges.earliest, edges.latest, self.options.reads)
        check_losses(losses, self.options.on_data_loss)
        start = next_starts(start, edges.earliest, edges.latest, self.options.on_data_loss)
        start, end = blocking.call(lambda client: self.bounds.apply(client, start, end))
        sizes = blocking.call(
            lambda client: measure_record_bytes(client, edges, self.options.tasks.record_bytes)
        )
        ranges = ranges_between(start, end, self.options.on_data_loss)
        return [InputPartition(task) for task in plan_tasks(ranges, self.options.tasks, sizes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is None:  # Spark's task of a batch without partitions
            return iter(())
        return read_task(client_for(self.options.brokers), task, self.options, self.projection)


class PushdownBatchReader(BatchReader):
    """Skips offsets that filters exclude. Spark refuses `pushFilters` unless enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.bounds = bounds_of_filters(filters)
        return filters  # all of them: Spark applies them to the rest


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Spark keeps one for each query; its copies in tasks only read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.projection = projection_of(schema, options.columns)
        self._initial: OffsetsJson | None = None
        self._target: dict[TopicPartition, Offset] | None = None  # the end of an AvailableNow run
        self._latest: OffsetsJson | None = None
        self._committed: OffsetsJson | None = None
        self._commit_again_s = 0.0
        self._last_batch_s = time.monotonic()
        self._has_planned = False
        self._small = SmallBatches()
        self._rows: Iterator[pa.RecordBatch] = iter(())  # of the batch planned last, if read here
        self._committing: Future[None] | None = None

    # Called by Spark, in this order

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = dict(self._edges().latest)

    def initialOffset(self) -> OffsetsJson:  # noqa: N802
        if self._initial is None:  # Spark asks twice, and it must not change
            self._initial = to_json(
                self._blocking.call(lambda client: resolve_start(client, self.options))
            )
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self.options.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.rows_min is not None:
            return ReadMinRows(limits.rows_min)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        """The end offsets of the next batch; `start` itself when there is nothing to read yet."""
        self._small.note_finished(start)
        self.commit(start)
        self._has_planned = True
        processed = from_json(start)
        edges = self._edges_after(processed)
        end = self._end_of_batch(
            processed, edges, is_limited=not isinstance(limit, ReadAllAvailable)
        )
        if end is None or to_json(end) == start:
            return start
        self._last_batch_s = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        return self._latest

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        starts: Offsets = from_json(start)
        if start == self._initial and not self._has_planned:
            starts = self._first_starts(starts, from_json(end))
        ends = from_json(end)
        ranges = ranges_between(starts, ends, self.options.on_data_loss)
        tasks = plan_tasks(ranges, self.options.tasks)
        topics = {part.tp.topic for part in ranges}
        ids = self._blocking.call(lambda client: topic_ids_of(client, topics))
        planned = assign_topic_checks(tasks, starts, ends, ids)
        small = self._small.take(planned, end)
        self.__class__ = StreamReader
        if small is not None and self.options.columns.dead_letter_topic is None:
            self._rows = read_task(self._blocking, small.ranges, self.options, self.projection)
            self.__class__ = StreamReaderWithRows
        return [InputPartition(task) for task in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is None:  # Spark's task of a batch without partitions
            return iter(())
        ranges = check_topics(self._blocking, task, self.options)
        return read_task(self._blocking, ranges, self.options, self.projection)

    def commit(self, end: OffsetsJson) -> None:
        """Commit the query's offsets to a consumer group, for tools that show lag.

        Spark calls this one batch late and not at all after the last, so `latestOffset` does, too.
        A failure never fails the query: the checkpoint decides. The first commit is waited for
        (see `_first_starts`), others are under way until the next.
        """
        group = self.options.group
        if group is None or end == self._committed or time.monotonic() < self._commit_again_s:
            return
        is_first = self._committed is None
        self._finish_commit(group)
        self._committed = end
        commit = commit_offsets(self._blocking.client, group, from_json(end))
        self._committing = self._blocking.submit(commit)
        if is_first:
            self._finish_commit(group)

    def stop(self) -> None:
        if self.options.group is not None:
            self._finish_commit(self.options.group)

    # Internal

    def _finish_commit(self, group: str) -> None:
        """Wait for the commit that is under way; if it fails, the next one has to wait."""
        committing, self._committing = self._committing, None
        if committing is None:
            return
        try:
            committing.result(_COMMIT_TIMEOUT_S)
        except (ClientError, TimeoutError) as problem:
            self._committed = None
            self._commit_again_s = time.monotonic() + _COMMIT_PAUSE_S
            log.warning("offsets not committed", extra={"group": group, "reason": str(problem)})

    @property
    def _blocking(self) -> BlockingClient:
        return client_for(self.options.brokers)

    def _edges(self) -> LogEdges:
        edges = self._blocking.call(lambda client: find_log_edges(client, self.options))
        self._latest = to_json(edges.latest)
        return edges

    def _edges_after(self, processed: Offsets) -> LogEdges:
        """The log edges; waits up to pollTimeoutMs for records beyond `processed`."""
        edges = self._edges()
        if self._target is not None:
            return _up_to(edges, self._target)
        if edges.latest != processed:
            return edges
        self._blocking.submit(
            wait_for_records(self._blocking.long_poll_client, processed, self.options)
        ).result()
        return self._edges()

    def _first_starts(self, starts: Offsets, end: Offsets) -> Offsets:
        """The start offsets of a first batch that an earlier run planned and did not finish.

        The checkpoint has only its end offsets, and Spark asks again for its start, which may have
        changed. The group has it: the start was committed before the batch was planned.
        """
        group = self.options.group
        if (
            not isinstance(self.options.start, Edge | FromTime)
            or self.options.start is Edge.EARLIEST
        ):
            return starts  # these do not change
        committed = dict[TopicPartition, Offset]()
        if group is not None:
            committed = self._blocking.call(lambda client: committed_offsets(client, group, end))
        unknown = [str(tp) for tp in starts if tp in end and tp not in committed]
        if unknown and self.options.on_data_loss is OnDataLoss.FAIL:
            raise DataLost(
                "the first batch of this query was not finished, and its start offsets are"
                f" not known for {', '.join(sorted(unknown))}: give those offsets as"
                " startingOffsets, or start with another checkpointLocation"
            )
        return {tp: min(at, committed.get(tp, at)) for tp, at in starts.items()}

    def _end_of_batch(
        self, processed: Offsets, edges: LogEdges, *, is_limited: bool
    ) -> dict[TopicPartition, Offset] | None:
        policy = self.options.on_data_loss
        losses = find_losses(processed, edges.earliest, edges.latest, self.options.reads)
        check_losses(losses, policy)
        for loss in losses:
            log.warning("data lost", extra={"tp": str(loss.tp), "what": loss.explain()})
        starts = next_starts(processed, edges.earliest, edges.latest, policy)
        limits = self.options.limits
        if not is_limited:
            return dict(edges.latest)
        waited_ms = int((time.monotonic() - self._last_batch_s) * 1000)
        is_last = self._target is not None  # the end is fixed: do not wait for more
        if (
            not losses
            and not is_last
            and not is_enough(starts, edges.latest, limits, waited_ms=waited_ms)
        ):
            return None
        record_bytes = dict[TopicPartition, float]()
        if limits.bytes_max is not None:
            record_bytes = self._blocking.call(
                lambda client: measure_record_bytes(client, edges, self.options.tasks.record_bytes)
            )
        return limit(starts, edges.latest, limits, record_bytes)


class StreamReaderWithRows(StreamReader, _SimpleStreamReaderWrapper):
    """A stream reader that has read the batch that it planned, until Spark has taken the rows.

    Spark asks for rows together with a plan, but only readers of its own class for sources that
    are read in the driver.
    """

    def getCache(self, start: OffsetsJson, end: OffsetsJson) -> Iterator[pa.RecordBatch]:  # noqa: N802
        self.__class__ = StreamReader  # type: ignore[assignment]
        return self._rows


def _up_to(edges: LogEdges, target: Offsets) -> LogEdges:
    """The edges as if the logs ended at `target`."""
    latest = {tp: Offset(min(at, target[tp])) for tp, at in edges.latest.items() if tp in target}
    return LogEdges({tp: edges.earliest[tp] for tp in latest}, latest)
