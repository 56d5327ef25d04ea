"""Sinks that fail at a given point of a given micro-batch, as if their driver had died there.

A sink keeps its state in the cluster or the table, so a query that fails and is started again in
the same session finds the state that a killed driver would have left. `test_exactly_once.py` kills
drivers.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.batch_commit import StreamBatchCommit
from ottla.spark.batch_decisions import Decision
from ottla.spark.blocking_client import client_for
from ottla.spark.delta_sink import DeltaStreamWriter
from ottla.spark.delta_sink import stream_writer as delta_stream_writer
from ottla.spark.read_task import BATCH_ID
from ottla.spark.registration import DeltaDataSource, OttlaDataSource
from ottla.spark.sink import StreamWriter
from ottla.spark.write_options import WriteOptions, parse_write_options
from ottla.spark.write_task import WrittenInTransaction

CRASH = "crash"  # an option: `Crash.encode`
# Points of a batch at which its driver dies. In its tasks: none has ended and all have written
# something; all but the first have ended. Then points of its commit.
TASK_POINTS = ("begun", "between tasks")
COMMIT_POINTS = ("written", "decided", "half ended", "ended", "noted")
TOPIC_POINTS = (*TASK_POINTS, *COMMIT_POINTS)
TABLE_POINTS = (*TASK_POINTS, "written", "ended")
_TIMEOUT_S = 120
_PAUSE_S = 0.01


class Crashed(Exception):
    """The driver would be dead now."""


@dataclass(frozen=True)
class Crash:
    """The micro-batch, its number of tasks, and the point in it at which the driver dies."""

    point: str = ""
    batch: int = -1
    tasks: int = 0
    marks: str = ""  # a directory in which tasks note that they are done

    def encode(self) -> str:
        return f"{self.point}@{self.batch}@{self.tasks}@{self.marks}"

    @classmethod
    def decode(cls, text: str) -> "Crash":
        if not text:
            return cls()
        point, batch, tasks, marks = text.split("@", 3)
        return cls(point, int(batch), int(tasks), marks)

    def write(
        self,
        write: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage],
        rows: Iterator[pa.RecordBatch],
    ) -> WriterCommitMessage:
        """Write the rows of a task, or half of them if the driver dies before its end."""
        task = TaskContext.get()
        assert task is not None
        if self.point not in TASK_POINTS or task.getLocalProperty(BATCH_ID) != str(self.batch):
            return write(rows)
        if self.point == "begun" or task.partitionId() == 0:
            write(_halves(rows))  # the transaction stays open, as after a crash
            self._wait_others()
            raise Crashed(self.point)
        done = write(rows)
        Path(self.marks, f"ended-{task.partitionId()}").touch()
        return done

    def _wait_others(self) -> None:
        give_up_s = time.monotonic() + _TIMEOUT_S
        while self.point == "between tasks" and self._ended() < self.tasks - 1:
            assert time.monotonic() < give_up_s, f"{self._ended()} of {self.tasks} tasks ended"
            time.sleep(_PAUSE_S)

    def _ended(self) -> int:
        return len(list(Path(self.marks).glob("ended-*")))


def _halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, (batch.num_rows + 1) // 2)


class CrashingSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options.items())
        crash = Crash.decode(options.pop(CRASH, ""))
        return CrashingWriter(parse_write_options(options), schema, crash)


class CrashingWriter(StreamWriter):
    def __init__(self, options: WriteOptions, schema: StructType, crash: Crash) -> None:
        super().__init__(options, schema)
        self.crash = crash

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.crash.write(super().write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId != self.crash.batch:
            super().commit(messages, batchId)
            return
        commit_until(self, messages, batchId, self.crash.point)
        raise Crashed(self.crash.point)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A driver that is dead aborts nothing; one that is not does as it should."""
        if batchId != self.crash.batch:
            super().abort(messages, batchId)


def commit_until(
    writer: StreamWriter, messages: list[WriterCommitMessage | None], number: int, point: str
) -> None:
    """Commit a batch up to the point at which its driver dies."""
    if point == "written":
        return
    written = [one for one in messages if isinstance(one, WrittenInTransaction)]
    batch = CrashingBatch(writer, written, number, point)
    with suppress(Crashed):
        client_for(writer.options.brokers).submit(batch.run()).result()
        assert point == "noted", f"the batch was not decided, and did not reach the point {point}"


class CrashingBatch(StreamBatchCommit):
    """The commit of a micro-batch, up to the point at which its driver dies."""

    def __init__(
        self, writer: StreamWriter, written: list[WrittenInTransaction], number: int, point: str
    ) -> None:
        options = writer.options
        super().__init__(client_for(options.brokers), number, written, options.accepted_batch)
        self.point = point

    async def commit_transactions(self, decision: Decision) -> None:
        counts = {"decided": 0, "half ended": len(decision.producers) // 2}
        count = counts.get(self.point, len(decision.producers))
        await super().commit_transactions(replace(decision, producers=decision.producers[:count]))
        if self.point != "noted":
            raise Crashed(self.point)


class CrashingDeltaSource(DeltaDataSource):
    @classmethod
    def name(cls) -> str:
        return "crashing-delta"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options.items())
        crash = Crash.decode(options.pop(CRASH, ""))
        writer = delta_stream_writer(options, schema, overwrite=overwrite)
        return CrashingDeltaWriter(writer, crash)


class CrashingDeltaWriter(DeltaStreamWriter):
    def __init__(self, writer: DeltaStreamWriter, crash: Crash) -> None:
        self.options, self.schema, self.crash = writer.options, writer.schema, crash

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.crash.write(super().write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId != self.crash.batch or self.crash.point == "ended":
            super().commit(messages, batchId)
        if batchId == self.crash.batch:
            raise Crashed(self.crash.point)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A driver that is dead removes nothing; one that is not does as it should."""
        if batchId != self.crash.batch:
            super().abort(messages, batchId)
