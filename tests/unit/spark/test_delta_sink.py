"""Commits to Delta tables: once for each batch, whoever else is at it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ottla.spark.batch_decisions import BatchRefused
from ottla.spark.delta_sink import (
    DeltaStreamWriter,
    TableRefused,
    WrittenFiles,
    add_files,
    batch_writer,
    stream_writer,
)
from ottla.spark.option_reader import OptionRefused

TIMEOUT_S = 60
ROUNDS = 10
SCHEMA = StructType([StructField("n", LongType(), nullable=False)])


def writer_to(table: Path, **more: str) -> DeltaStreamWriter:
    options = {"path": str(table), "txnAppId": "query", "checkpointLocation": "c"}
    return stream_writer(options | more, SCHEMA, overwrite=False)


def write(writer: DeltaStreamWriter, *numbers: int) -> WrittenFiles:
    done = writer.write(iter([pa.record_batch({"n": pa.array(numbers, pa.int64())})]))
    assert isinstance(done, WrittenFiles)
    return done


def numbers(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("n").to_pylist())


def names(table: Path) -> set[str]:
    return {file.name for file in table.glob("*.parquet")}


def test_a_batch_of_several_tasks_is_one_commit(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    messages = [write(writer, 1, 2), write(writer, 3), None, WrittenFiles((), "query")]
    writer.commit([*messages], batchId=0)
    assert numbers(tmp_path) == [1, 2, 3]
    assert DeltaTable(tmp_path).version() == 1  # made, then filled
    writer.commit([WrittenFiles((), "query")], batchId=1)
    assert DeltaTable(tmp_path).version() == 1  # no rows, no commit


def test_a_batch_that_is_run_again_adds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    first = write(writer, 1, 2)
    writer.commit([first], batchId=0)
    writer.commit([write(writer, 1, 2)], batchId=0)
    assert numbers(tmp_path) == [1, 2]
    assert names(tmp_path) == {file.name for file in first.files}
    writer.commit([write(writer, 3)], batchId=1)
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_batch_that_is_run_again_with_other_rows_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    writer = writer_to(tmp_path)
    first = write(writer, 1, 2)
    writer.commit([first], batchId=3)
    writer.commit([write(writer, 2), write(writer, 1)], batchId=3)  # the same in another layout
    for other in ([write(writer, 1)], [write(writer, 1, 3)], [WrittenFiles((), "query")]):
        with pytest.raises(BatchRefused, match="with other content: 2 rows"):
            writer.commit([*other], batchId=3)
    assert numbers(tmp_path) == [1, 2]
    assert names(tmp_path) == {file.name for file in first.files}
    accepting = writer_to(tmp_path, acceptBatch="3")
    accepting.commit([write(writer, 1)], batchId=3)
    accepting.commit([write(writer, 4)], batchId=4)
    assert numbers(tmp_path) == [1, 2, 4]


def test_a_batch_from_an_older_checkpoint_is_refused(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    for batch in range(3):
        writer.commit([write(writer, batch)], batchId=batch)
    with pytest.raises(BatchRefused, match=r"up to batch\s2.*older copy"):
        writer.commit([write(writer, 0, 1, 2)], batchId=1)
    assert numbers(tmp_path) == [0, 1, 2]


def test_a_batch_that_an_older_version_has_written_is_refused_until_it_is_accepted(
    tmp_path: Path,
) -> None:
    """The older version stored the number of the batch without its content."""
    writer = writer_to(tmp_path)
    writer.commit([write(writer, 1)], batchId=0)
    write_deltalake(
        tmp_path,
        pa.table({"n": pa.array([2])}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("old", 7)]),
    )
    old = writer_to(tmp_path, txnAppId="old")
    with pytest.raises(BatchRefused, match="written by a version"):
        old.commit([write(old, 2)], batchId=7)
    writer_to(tmp_path, txnAppId="old", acceptBatch="7").commit([write(old, 2)], batchId=7)
    old.commit([write(old, 3)], batchId=8)
    assert numbers(tmp_path) == [1, 2, 3]


def test_an_abort_never_takes_what_the_table_has(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    committed, lost = write(writer, 1), write(writer, 2)
    writer.commit([committed], batchId=0)
    writer.abort([committed, lost, None], batchId=0)
    assert numbers(tmp_path) == [1]
    assert names(tmp_path) == {committed.files[0].name}


def test_an_abort_before_there_is_a_table_cleans_up(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    writer.abort([write(writer, 1)], batchId=0)
    assert names(tmp_path) == set()


def test_two_queries_write_to_one_table(tmp_path: Path) -> None:
    for app in ("one", "two"):
        writer = writer_to(tmp_path, txnAppId=app)
        writer.commit([write(writer, 1)], batchId=0)
    assert numbers(tmp_path) == [1, 1]


def test_a_query_that_nobody_names_is_refused(tmp_path: Path) -> None:
    writer = stream_writer({"path": str(tmp_path)}, SCHEMA, overwrite=False)
    with pytest.raises(OptionRefused, match="name it with txnAppId"):
        writer.commit([write(writer, 1)], batchId=0)


def test_a_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    writer = writer_to(tmp_path)
    writer.commit([write(writer, 1)], batchId=0)
    more = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    with pytest.raises(TableRefused, match=r"other columns than these rows \(m\)"):
        add_files(writer.options, more, [], None)
    two = StructType([*SCHEMA.fields, StructField("m", StringType())])
    split = {"path": str(tmp_path / "split"), "partitionColumns": "m"}
    one_way = batch_writer(split, two, overwrite=False)
    rows = pa.record_batch({"n": pa.array([1]), "m": pa.array(["a"])})
    one_way.commit([one_way.write(iter([rows]))])
    other_way = batch_writer({"path": split["path"]}, two, overwrite=False)
    with pytest.raises(TableRefused, match="is split by m: say so in partitionColumns"):
        other_way.commit([other_way.write(iter([rows]))])


def test_a_table_is_never_overwritten(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="mode append"):
        batch_writer({"path": str(tmp_path)}, SCHEMA, overwrite=True)
    with pytest.raises(OptionRefused, match="output mode append"):
        stream_writer({"path": str(tmp_path)}, SCHEMA, overwrite=True)


def test_twins_that_commit_at_the_same_moment_count_once(tmp_path: Path) -> None:
    def commit(batch: int, start: Barrier) -> None:
        writer = writer_to(tmp_path)
        done = write(writer, batch)
        start.wait(TIMEOUT_S)
        writer.commit([done], batchId=batch)

    for batch in range(ROUNDS):
        start = Barrier(2)
        with ThreadPoolExecutor(2) as twins:
            for done in [twins.submit(commit, batch, start) for _ in range(2)]:
                done.result(TIMEOUT_S)
    assert numbers(tmp_path) == list(range(ROUNDS))
    assert len(names(tmp_path)) == ROUNDS
