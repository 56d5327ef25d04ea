"""A query that fails in mid-batch and is started again with another plan, or another checkpoint.

Every row comes out once, or the query ends with an error that names the case. The full matrix is in
`make nightly`; `make test` has a row of it for each point at which a driver may die.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla.client.client import Client
from ottla.client.groups import list_groups
from ottla.client.transactions import list_transactions
from ottla.model import Endpoint
from spark import crashing as spark_crashing
from spark.crashing import (
    CRASH,
    TABLE_POINTS,
    TOPIC_POINTS,
    CrashingDeltaSource,
    CrashingSource,
)
from spark.patience import patiently
from spark.topics import Topic

ROWS = 300
BATCH_ROWS = 100
CRASHED_BATCH = 1
PATIENCE_S = 400
NEW_TOPIC = Callable[..., Topic]
_numbers = count(1)


def same(rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True)
class Plan:
    """How a query is started: what may change between two runs on one checkpoint."""

    options: dict[str, str] = field(default_factory=dict)
    code: Callable[[DataFrame], DataFrame] = same
    conf: dict[str, str] = field(default_factory=dict)
    sink: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """Two plans of one query; with `is_same` false their rows differ."""

    before: Plan
    after: Plan
    is_same: bool = True


SHUFFLE = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
CHANGES = {
    "minPartitions from 4 to unset": Change(Plan({"minPartitions": "4"}), Plan()),
    "minPartitions from 2 to 4": Change(Plan({"minPartitions": "2"}), Plan({"minPartitions": "4"})),
    "targetBytesPerTask": Change(Plan({"targetBytesPerTask": "25k"}), Plan()),
    "maxRecordsPerPartition": Change(Plan(), Plan({"maxRecordsPerPartition": "30"})),
    "maxPartitions": Change(
        Plan({"minPartitions": "4"}), Plan({"minPartitions": "4", "maxPartitions": "1"})
    ),
    "repartition from 4 to 3": Change(
        Plan(code=lambda rows: rows.repartition(4)), Plan(code=lambda rows: rows.repartition(3))
    ),
    "coalesce taken out": Change(
        Plan({"minPartitions": "3"}, code=lambda rows: rows.coalesce(1)),
        Plan({"minPartitions": "3"}),
    ),
    "repartition by key put in": Change(
        Plan(), Plan(code=lambda rows: rows.repartition(3, "value"))
    ),
    "shuffle partitions": Change(
        Plan(code=lambda rows: rows.repartition("value"), conf={SHUFFLE: "4"}),
        Plan(code=lambda rows: rows.repartition("value"), conf={SHUFFLE: "2"}),
    ),
    "an adaptive plan": Change(
        Plan(code=lambda rows: rows.repartition("value"), conf={ADAPTIVE: "false"}),
        Plan(code=lambda rows: rows.repartition("value"), conf={ADAPTIVE: "true"}),
    ),
    "rows that come out differently": Change(
        Plan({"minPartitions": "2"}),
        Plan({"minPartitions": "3"}, code=lambda rows: rows.selectExpr("value || '' AS value")),
    ),
    "other code": Change(
        Plan({"minPartitions": "2"}),
        Plan(code=lambda rows: rows.selectExpr("CAST(value + 1000 AS STRING) AS value")),
        is_same=False,
    ),
    "fewer rows for a batch": Change(
        Plan({"minPartitions": "2"}), Plan({"maxOffsetsPerTrigger": "40"})
    ),
    "compression": Change(Plan(), Plan(sink={"kafka.compression.type": "zstd"})),
}
OFTEN = [("repartition from 4 to 3", "written"), ("minPartitions from 4 to unset", "half ended")]
ALL = [(change, point) for change in CHANGES for point in TOPIC_POINTS]


def cases(often: list[tuple[str, str]], all_: list[tuple[str, str]]) -> list[object]:
    """Those of `make test`, and the others for the night."""
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
    cloudpickle.register_pickle_by_value(spark_crashing)  # workers cannot import what tests have
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

    def run(self, plan: Plan, crash: str = "", **sink: str) -> None:
        """Read what is there."""
        with conf(self.spark, plan.conf):
            patiently(lambda: self._run(plan, crash, sink))

    def fail(self, plan: Plan, crash: str = "", **sink: str) -> str:
        """What the query says that does not survive this."""
        with pytest.raises(StreamingQueryException) as failed:
            self.run(plan, crash, **sink)
        return str(failed.value)

    def _run(self, plan: Plan, crash: str, sink: dict[str, str]) -> None:
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
        if crash:
            writer = writer.option(CRASH, crash)
        if isinstance(self.target, Topic):
            writer = (
                writer.format("crashing")
                .option("kafka.bootstrap.servers", self.target.address)
                .option("topic", self.target.name)
                .options(**plan.sink, **sink)
            )
        else:
            writer = writer.format("crashing-delta").option("path", str(self.target))
            writer = writer.options(**sink)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    def found(self) -> list[int]:
        """What came out."""
        if isinstance(self.target, Topic):
            return sorted(map(int, self.target.committed()))
        table = DeltaTable(self.target).to_pyarrow_table()
        return sorted(map(int, table.column("value").to_pylist()))


@contextmanager
def conf(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.unset(name)
        if value is not None:
            spark.conf.set(name, value)


@pytest.fixture
def query(crashing: SparkSession, source: Topic, tmp_path: Path, new_topic: NEW_TOPIC) -> Query:
    return Query(crashing, source, tmp_path / "checkpoint", new_topic(3))


@pytest.fixture
def table_query(crashing: SparkSession, source: Topic, tmp_path: Path) -> Query:
    return Query(crashing, source, tmp_path / "checkpoint", tmp_path / "table")


def check_change(query: Query, change: Change, point: str) -> None:
    crash = f"{point}@{CRASHED_BATCH}"
    assert "Crashed" in query.fail(change.before, crash)
    if change.is_same:
        query.run(change.after)
        assert query.found() == list(range(ROWS))
    elif point == "written":  # nothing of the batch counted: all of it is as the new code has it
        query.run(change.after)
        found = query.found()
        assert [number % 1000 for number in sorted(found, key=lambda n: n % 1000)] == list(
            range(ROWS)
        )
        assert sum(number < 1000 for number in found) == BATCH_ROWS
    else:
        told = query.fail(change.after)
        assert f"micro-batch {CRASHED_BATCH} was written before, with other content" in told
        query.run(change.after, acceptBatch=str(CRASHED_BATCH))
        found = query.found()
        assert sorted(number % 1000 for number in found) == list(range(ROWS))
        assert sum(number < 1000 for number in found) == 2 * BATCH_ROWS


@pytest.mark.parametrize(("change", "point"), cases(OFTEN, ALL))
def test_a_plan_may_change_after_a_crash(query: Query, change: str, point: str) -> None:
    check_change(query, CHANGES[change], point)


@pytest.mark.parametrize(
    ("change", "point"),
    cases(
        [("repartition from 4 to 3", "ended")],
        [(change, point) for change in CHANGES for point in TABLE_POINTS],
    ),
)
def test_a_plan_may_change_after_a_crash_of_a_query_that_writes_a_table(
    table_query: Query, change: str, point: str
) -> None:
    check_change(table_query, CHANGES[change], point)


# Checkpoints


def damage_nothing(checkpoint: Path) -> None:
    """For a restart as it should be."""


def remove_last(*folders: str, batches: int = 1) -> Callable[[Path], None]:
    def remove(checkpoint: Path) -> None:
        for folder in folders:
            names = sorted((file.name for file in (checkpoint / folder).glob("[0-9]*")), key=int)
            for name in names[-batches:]:
                (checkpoint / folder / name).unlink()
                (checkpoint / folder / f".{name}.crc").unlink(missing_ok=True)

    return remove


DAMAGES = {
    "none": damage_nothing,
    "the last commit": remove_last("commits"),
    "two commits": remove_last("commits", batches=2),
    "the last batch": remove_last("commits", "offsets"),
    "two batches": remove_last("commits", "offsets", batches=2),
    "the last offsets": remove_last("offsets"),
}


def check_damage(query: Query, damage: str, later: Plan) -> None:
    """Either every row comes out once, or the query says what is wrong and nothing is doubled."""
    query.run(Plan({"minPartitions": "2"}))
    DAMAGES[damage](query.checkpoint)
    said = ""
    try:
        query.run(later)
    except StreamingQueryException as problem:
        said = str(problem)
    assert query.found() == list(range(ROWS))
    if said:
        assert "micro-batch" in said, said
        assert "acceptBatch" in said, said


@pytest.mark.parametrize(
    ("damage", "limit"),
    cases(
        [],
        [(damage, limit) for damage in DAMAGES for limit in ("100", "40", "1000")],
    ),
)
def test_files_may_be_missing_from_a_checkpoint(query: Query, damage: str, limit: str) -> None:
    check_damage(query, damage, Plan({"maxOffsetsPerTrigger": limit, "minPartitions": "3"}))


@pytest.mark.nightly
@pytest.mark.parametrize("limit", ["100", "40", "1000"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_files_may_be_missing_from_the_checkpoint_of_a_query_that_writes_a_table(
    table_query: Query, damage: str, limit: str
) -> None:
    check_damage(table_query, damage, Plan({"maxOffsetsPerTrigger": limit, "minPartitions": "3"}))


def check_older_checkpoint(query: Query, limit: str) -> str:
    """Run a query, keep a copy of its checkpoint, run on, and go back to the copy."""
    assert "Crashed" in query.fail(Plan(), "written@1")
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
    assert query.awaitTermination(PATIENCE_S)
    assert asyncio.run(left_behind()) - before == {
        f"{query.id}-{topic.name}-{task}.0" for task in range(2)
    }
    assert sorted(map(int, topic.committed())) == list(range(ROWS))
