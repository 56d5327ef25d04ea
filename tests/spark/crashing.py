"""Sinks that fail at a given point of a given micro-batch, as if their driver had died there.

What a sink knows lies in the cluster or the table, so a query that fails and is started again in
the same session finds what a killed driver would have left. `test_exactly_once.py` kills drivers.
"""

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.decisions import Decide
from ottla.spark.lake import LakeStreamWriter
from ottla.spark.lake import stream_writer as lake_stream_writer
from ottla.spark.link import link_to
from ottla.spark.options import WriteOptions, parse_write_options
from ottla.spark.registration import DeltaDataSource, OttlaDataSource
from ottla.spark.sink import StreamWriter
from ottla.spark.writing import Written

CRASH = "crash"  # an option: the point and the number of the batch, such as `decided@1`
TOPIC_POINTS = ("written", "decided", "half ended", "ended")
TABLE_POINTS = ("written", "ended")


class Crashed(Exception):
    """The driver would be dead now."""


class CrashingSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options.items())
        crash = options.pop(CRASH, "")
        return CrashingWriter(parse_write_options(options), schema, crash)


class CrashingWriter(StreamWriter):
    def __init__(self, options: WriteOptions, schema: StructType, crash: str) -> None:
        super().__init__(options, schema)
        self.crash = crash

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        point, _, number = self.crash.partition("@")
        if number != str(batchId):
            super().commit(messages, batchId)
            return
        commit_until(self, messages, batchId, point)
        raise Crashed(point)


def commit_until(
    writer: StreamWriter, messages: list[WriterCommitMessage | None], number: int, point: str
) -> None:
    """Commit a batch as far as a driver comes that dies at this point."""
    if point == "written":
        return
    batch = writer.batch_of([one for one in messages if isinstance(one, Written)], number)
    link = link_to(writer.options.brokers)
    verdict = link.start(batch.judge()).result()
    assert isinstance(verdict, Decide), verdict
    link.start(batch.decide(verdict.decision)).result()
    producers = verdict.decision.producers
    ended = {"decided": 0, "half ended": 1, "ended": len(producers)}[point]
    some = type(verdict.decision)(number, verdict.decision.content, producers[:ended])
    link.start(batch.end(some)).result()


class CrashingDeltaSource(DeltaDataSource):
    @classmethod
    def name(cls) -> str:
        return "crashing-delta"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = dict(self.options.items())
        crash = options.pop(CRASH, "")
        writer = lake_stream_writer(options, schema, overwrite=overwrite)
        return CrashingLakeWriter(writer, crash)


class CrashingLakeWriter(LakeStreamWriter):
    def __init__(self, writer: LakeStreamWriter, crash: str) -> None:
        self.options, self.schema, self.crash = writer.options, writer.schema, crash

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        point, _, number = self.crash.partition("@")
        if number != str(batchId) or point == "ended":
            super().commit(messages, batchId)
        if number == str(batchId):
            raise Crashed(point)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A driver that is dead removes nothing."""
