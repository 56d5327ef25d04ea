"""A query that fails in mid-batch and is started again with another plan, or another checkpoint.

Every row comes out once, or the query ends with an error that names the case. The full matrix is in
`make nightly`; `make test` has a row of it for each point at which a driver may die.
"""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla.client.client import Client
from ottla.client.groups import list_groups
from ottla.client.transactions import list_transactions
from ottla.model import Endpoint
from spark import crashing_sinks
from spark.crashing_sinks import (
    CRASH,
    TABLE_POINTS,
    TASK_POINTS,
    TOPIC_POINTS,
    Crash,
    CrashingDeltaSource,
    CrashingSource,
)
from spark.topics import Topic
from spark.worker_start import retry_worker_start

ROWS = 300
BATCH_ROWS = 100
CRASHED_BATCH = 1
TIMEOUT_S = 400
NEW_TOPIC = Callable[..., Topic]
_numbers = count(1)


def same(rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True)
class Plan:
    """The options of a query that may change between two runs on one checkpoint."""

    options: dict[str, str] = field(default_factory=dict)
    code: Callable[[DataFrame], DataFrame] = same
    conf: dict[str, str] = field(default_factory=dict)
    sink: dict[str, str] = field(default_factory=dict)
    tasks: int = 2  # of a batch of `BATCH_ROWS`; more than one, so that there is a half of them


@dataclass(frozen=True)
class Change:
    """Two plans of one query; with `is_same` false their rows differ."""

    before: Plan
    after: Plan
    is_same: bool = True


SHUFFLE = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TWO = Plan({"minPartitions": "2"})
BY_VALUE = Plan(code=lambda rows: rows.repartition("value"), tasks=4)
CHANGES = {
    "none": Change(TWO, TWO),
    "minPartitions from 4 to unset": Change(Plan({"minPartitions": "4"}, tasks=4), Plan()),
    "minPartitions from 2 to 4": Change(TWO, Plan({"minPartitions": "4"})),
    "targetBytesPerTask": Change(Plan({"targetBytesPerTask": "25k"}, tasks=4), Plan()),
    "maxRecordsPerPartition": Change(TWO, Plan({"maxRecordsPerPartition": "30"})),
    "maxPartitions": Change(
        Plan({"minPartitions": "4"}, tasks=4), Plan({"minPartitions": "4", "maxPartitions": "1"})
    ),
    "repartition from 4 to 3": Change(
        Plan(code=lambda rows: rows.repartition(4), tasks=4),
        Plan(code=lambda rows: rows.repartition(3)),
    ),
    "coalesce put in": Change(
        Plan({"minPartitions": "3"}, tasks=3),
        Plan({"minPartitions": "3"}, code=lambda rows: rows.coalesce(1)),
    ),
    "coalesce taken out": Change(
        Plan({"minPartitions": "4"}, code=lambda rows: rows.coalesce(2)),
        Plan({"minPartitions": "4"}),
    ),
    "repartition by key put in": Change(TWO, Plan(code=lambda rows: rows.repartition(3, "value"))),
    "shuffle partitions": Change(
        replace(BY_VALUE, conf={SHUFFLE: "4"}), replace(BY_VALUE, conf={SHUFFLE: "2"})
    ),
    "an adaptive plan": Change(
        replace(BY_VALUE, conf={ADAPTIVE: "false"}), replace(BY_VALUE, conf={ADAPTIVE: "true"})
    ),
    "Arrow batches of 7 rows": Change(TWO, replace(TWO, conf={ARROW_ROWS: "7"})),
    "rows that are computed in another way": Change(
        TWO,
        Plan({"minPartitions": "3"}, code=lambda rows: rows.selectExpr("value || '' AS value")),
    ),
    "other code": Change(
        TWO,
        Plan(code=lambda rows: rows.selectExpr("CAST(value + 1000 AS STRING) AS value")),
        is_same=False,
    ),
    "fewer rows for a batch": Change(TWO, Plan({"maxOffsetsPerTrigger": "40"})),
    "compression": Change(TWO, replace(TWO, sink={"kafka.compression.type": "zstd"})),
}
OFTEN = [("repartition from 4 to 3", "between tasks"), ("other code", "half ended")]
ALL = [(change, point) for change in CHANGES for point in TOPIC_POINTS]
ALL_OF_TABLES = [
    (change, point) for change in CHANGES if change != "compression" for point in TABLE_POINTS
]


def cases(often: list[tuple[str, str]], all_: list[tuple[str, str]]) -> list[object]:
    """The cases of `make test`, and all others marked `nightly`."""
    nightly = [pytest.param(*case, marks=pytest.mark.nightly) for case in all_ if case not in often]
    return [*often, *nightly]


@pytest.fixture(scope="module")
def source(address: str) -> Topic:
    """Numbers in two partitions, read by every query here."""
    topic = Topic(address, "restarts")
    topic.create(2)
    topic.fill(range(200), partition=0)
    topic.fill(range(200, ROWS), partition=1)
    return topic


@pytest.fixture(scope="module")
def crashing(spark: SparkSession) -> SparkSession:
    cloudpickle.register_pickle_by_value(crashing_sinks)  # workers cannot import what tests have
    spark.dataSource.register(CrashingSource)
    spark.dataSource.register(CrashingDeltaSource)
    return spark


class Query:
    """A query from a topic to a topic or a table, which can be started again and again."""

    def __init__(
        self, spark: SparkSession, source: Topic, checkpoint: Path, target: Topic | Path
    ) -> None:
        self.spark = spark
        self.source = source
        self.checkpoint = checkpoint
        self.target = target

    def run(self, plan: Plan, **sink: str) -> None:
        """Read what is there."""
        with conf(self.spark, plan.conf):
            retry_worker_start(lambda: self._run(plan, sink))

    def fail(self, plan: Plan, **sink: str) -> str:
        """The error of a query that fails."""
        with pytest.raises(StreamingQueryException) as failed:
            self.run(plan, **sink)
        return str(failed.value)

    def crash(self, plan: Plan, point: str, batch: int = CRASHED_BATCH) -> None:
        """Run until the driver dies at this point."""
        marks = self.checkpoint.with_name("marks")
        marks.mkdir()
        crash = Crash(point, batch, plan.tasks, str(marks))
        assert "Crashed" in self.fail(plan, **{CRASH: crash.encode()})

    def _run(self, plan: Plan, sink: dict[str, str]) -> None:
        options = self.source.options(
            **{
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(BATCH_ROWS),
                "commitGroup": "",
                **plan.options,
            }
        )
        rows = self.spark.readStream.format("ottla").options(**options).load()
        rows = plan.code(rows.selectExpr("CAST(value AS STRING) AS value"))
        writer = rows.writeStream.option("checkpointLocation", str(self.checkpoint))
        if isinstance(self.target, Topic):
            target = {
                "kafka.bootstrap.servers": self.target.address,
                "topic": self.target.name,
                **plan.sink,
            }
            writer = writer.format("crashing").options(**target)
        else:
            writer = writer.format("crashing-delta").option("path", str(self.target))
        query = writer.options(**sink).trigger(availableNow=True).start()
        assert query.awaitTermination(TIMEOUT_S)

    def found(self) -> list[int]:
        """The committed numbers."""
        if isinstance(self.target, Topic):
            return sorted(map(int, self.target.committed()))
        table = DeltaTable(self.target).to_pyarrow_table()
        return sorted(map(int, table.column("value").to_pylist()))


@contextmanager
def conf(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name)
            if earlier is not None:
                spark.conf.set(name, earlier)


@pytest.fixture
def query(crashing: SparkSession, source: Topic, tmp_path: Path, new_topic: NEW_TOPIC) -> Query:
    return Query(crashing, source, tmp_path / "checkpoint", new_topic(3))


@pytest.fixture
def table_query(crashing: SparkSession, source: Topic, tmp_path: Path) -> Query:
    return Query(crashing, source, tmp_path / "checkpoint", tmp_path / "table")


def check_change(query: Query, change: Change, point: str) -> None:
    query.crash(change.before, point)
    if change.is_same:
        query.run(change.after)
        assert query.found() == list(range(ROWS))
    elif point in (*TASK_POINTS, "written"):
        query.run(change.after)  # nothing of the batch counted: all of it is as the new code has it
        assert by_code(query) == ROWS - BATCH_ROWS
    else:
        told = query.fail(change.after)
        assert f"micro-batch {CRASHED_BATCH} was written before, with other content" in told
        query.run(change.after, acceptBatch=str(CRASHED_BATCH))
        assert by_code(query) == ROWS - 2 * BATCH_ROWS


def by_code(query: Query) -> int:
    """The number of rows that the new code wrote, which adds 1000; every number exists once."""
    found = query.found()
    assert sorted(number % 1000 for number in found) == list(range(ROWS))
    return sum(number >= 1000 for number in found)


@pytest.mark.parametrize(("change", "point"), cases(OFTEN, ALL))
def test_a_plan_may_change_after_a_crash(query: Query, change: str, point: str) -> None:
    check_change(query, CHANGES[change], point)


@pytest.mark.parametrize(
    ("change", "point"), cases([("repartition from 4 to 3", "ended")], ALL_OF_TABLES)
)
def test_a_plan_may_change_after_a_crash_of_a_query_that_writes_a_table(
    table_query: Query, change: str, point: str
) -> None:
    check_change(table_query, CHANGES[change], point)


# Checkpoints


def remove(*patterns: str, last: int | None = None) -> Callable[[Path], None]:
    """Removes files of a checkpoint: all that are named so, or those of the last batches."""

    def damage(checkpoint: Path) -> None:
        for pattern in patterns:
            found = [file for file in checkpoint.glob(pattern) if file.is_file()]
            if last is not None:
                found = sorted(found, key=lambda file: int(file.name))[-last:]
            for file in found:
                file.unlink()
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    return damage


COMMITS, OFFSETS = "commits/[0-9]*", "offsets/[0-9]*"
DAMAGES = {
    "none": remove(),
    "the last commit": remove(COMMITS, last=1),
    "two commits": remove(COMMITS, last=2),
    "all commits": remove(COMMITS),
    "the first commit": remove("commits/0"),
    "the last offsets": remove(OFFSETS, last=1),
    "two offsets": remove(OFFSETS, last=2),
    "all offsets": remove(OFFSETS),
    "the first offsets": remove("offsets/0"),
    "the last batch": remove(COMMITS, OFFSETS, last=1),
    "two batches": remove(COMMITS, OFFSETS, last=2),
    "all batches": remove(COMMITS, OFFSETS),
    "the metadata": remove("metadata"),
    "the sources": remove("sources/**/*"),
    "all checksums": remove("**/.*.crc"),
}
LIMITS = (str(BATCH_ROWS), "40", str(ROWS))
# What is said when rows may neither be written nor be left out: by the sink, or by Spark itself,
# which compares its own files before (the last three) or after it has asked the sink.
NAMES = (
    r"micro-batch \d+ (was written before|comes with).*acceptBatch=\d+",
    r"\[CONCURRENT_STREAM_LOG_UPDATE\]",
    r"\[STREAMING_CHECKPOINT_MISSING_METADATA_FILE\]",
    r"Previous batch \d+ not found in offset log",
    r"exception: assertion failed.*Current Committed Offsets: \{\}",
)


def check_damage(query: Query, damage: str, limit: str) -> None:
    """Either every row comes out once, or the query says what is wrong, and does so when it has
    its checkpoint back."""
    copy = query.checkpoint.with_name("copy")
    shutil.copytree(query.checkpoint, copy)
    DAMAGES[damage](query.checkpoint)
    try:
        query.run(Plan({"maxOffsetsPerTrigger": limit, "minPartitions": "3"}))
    except PySparkException as problem:
        said = str(problem)
        assert any(re.search(name, said, re.DOTALL) for name in NAMES), said
        shutil.rmtree(query.checkpoint)
        shutil.copytree(copy, query.checkpoint)
        query.run(TWO)
    assert query.found() == list(range(ROWS))


@pytest.mark.nightly
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("target", ["topic", "table"])
def test_files_may_be_missing_from_a_checkpoint(
    request: pytest.FixtureRequest, target: str, damage: str, limit: str
) -> None:
    query = query_to(request, target)
    query.run(TWO)
    check_damage(query, damage, limit)


def query_to(request: pytest.FixtureRequest, target: str) -> Query:
    found: Query = request.getfixturevalue("query" if target == "topic" else "table_query")
    return found


CRASHES = [
    ("topic", "written"),
    ("topic", "half ended"),
    ("topic", "ended"),
    ("table", "written"),
    ("table", "ended"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("target", "point"), CRASHES)
def test_files_may_be_missing_from_the_checkpoint_of_a_query_that_crashed(
    request: pytest.FixtureRequest, target: str, point: str, damage: str
) -> None:
    query = query_to(request, target)
    query.crash(TWO, point)
    check_damage(query, damage, limit="40")


def check_older_checkpoint(query: Query, limit: str) -> str:
    """Run a query, keep a copy of its checkpoint, run on, and go back to the copy."""
    query.crash(TWO, "written")
    copy = query.checkpoint.with_name("copy")
    shutil.copytree(query.checkpoint, copy)
    query.run(Plan())
    shutil.rmtree(query.checkpoint)
    shutil.copytree(copy, query.checkpoint)
    said = ""
    try:
        query.run(Plan({"maxOffsetsPerTrigger": limit}))
    except StreamingQueryException as problem:
        said = str(problem)
    assert query.found() == list(range(ROWS))
    return said


@pytest.mark.nightly
def test_an_older_checkpoint_that_plans_the_same_batches_repeats_them(query: Query) -> None:
    assert check_older_checkpoint(query, str(BATCH_ROWS)) == ""


def test_an_older_checkpoint_that_plans_other_batches_is_an_error(query: Query) -> None:
    said = check_older_checkpoint(query, "40")
    assert "micro-batch 2 was written before, with other content: 100 rows" in said
    assert "older copy" in said


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [str(BATCH_ROWS), "40"])
def test_an_older_checkpoint_of_a_query_that_writes_a_table_is_an_error(
    table_query: Query, limit: str
) -> None:
    said = check_older_checkpoint(table_query, limit)
    assert "older copy" in said


def test_what_foreach_batch_writes_leaves_nothing_behind_for_each_batch(
    crashing: SparkSession, source: Topic, tmp_path: Path, topic: Topic
) -> None:
    """A broker keeps groups and transactional ids for a week."""

    def save(rows: DataFrame, batch: int) -> None:
        writer = rows.selectExpr("value").write.format("ottla").mode("append")
        writer.options(**{"kafka.bootstrap.servers": topic.address, "topic": topic.name}).save()

    async def left_behind() -> set[str]:
        async with Client([Endpoint.parse(topic.address)]) as client:
            groups = {one.group_id for one in await list_groups(client)}
            return groups | {one.transactional_id for one in await list_transactions(client)}

    before = asyncio.run(left_behind())
    options = source.options(
        startingOffsets="earliest", maxOffsetsPerTrigger="60", commitGroup="", minPartitions="2"
    )
    rows = crashing.readStream.format("ottla").options(**options).load()
    query = (
        rows.writeStream.foreachBatch(save)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    assert asyncio.run(left_behind()) - before == {
        f"{query.id}-{topic.name}-{task}.0" for task in range(2)
    }
    assert sorted(map(int, topic.committed())) == list(range(ROWS))
