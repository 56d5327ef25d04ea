"""The files that tasks of `ottla-delta` write, and its options."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from ottla.spark.delta_sink import parse_delta_options
from ottla.spark.option_reader import OptionRefused
from ottla.spark.parquet_files import (
    OPEN_FILES_MAX,
    DataFile,
    PartitionRefused,
    check_partition_columns,
    write_files,
)
from ottla.spark.table_location import TableLocation

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("is_odd", pa.bool_())])


def batch(*numbers: int) -> pa.RecordBatch:
    rows = [{"n": n, "day": n // 10 if n >= 0 else None, "is_odd": n % 2 == 1} for n in numbers]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def write(directory: Path, batches: Iterator[pa.RecordBatch], *columns: str) -> list[DataFile]:
    numbers = count()
    files = SubTreeFileSystem(str(directory), LocalFileSystem())
    return write_files(batches, files, SCHEMA, columns, lambda: f"{next(numbers)}.parquet")


def contents(directory: Path, files: list[DataFile]) -> dict[tuple[str | None, ...], list[int]]:
    found = dict[tuple[str | None, ...], list[int]]()
    for file in files:
        table = pq.read_table(directory / file.name)
        assert table.num_rows == file.rows
        assert (directory / file.name).stat().st_size == file.size_bytes
        found.setdefault(file.partition_values, []).extend(table.column("n").to_pylist())
    return found


def test_rows_of_a_task_are_one_file(tmp_path: Path) -> None:
    files = write(tmp_path, iter([batch(1, 2), batch(), batch(3)]))
    assert len(files) == 1
    assert contents(tmp_path, files) == {(): [1, 2, 3]}
    metadata = pq.read_metadata(tmp_path / files[0].name)
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, iter([batch()])) == []
    assert list(tmp_path.iterdir()) == []


def test_rows_are_split_by_values_in_deltas_spelling(tmp_path: Path) -> None:
    files = write(tmp_path, iter([batch(1, 12, -1), batch(2, 3)]), "day", "is_odd")
    assert contents(tmp_path, files) == {
        ("1970-01-01", "true"): [1, 3],
        ("1970-01-01", "false"): [2],
        ("1970-01-02", "false"): [12],
        (None, "true"): [-1],
    }
    assert pq.read_schema(tmp_path / files[0].name).names == ["n"]


def test_no_more_files_are_open_than_allowed_and_nothing_is_lost(tmp_path: Path) -> None:
    numbers = [10 * day for day in range(OPEN_FILES_MAX + 3)]
    files = write(tmp_path, iter([batch(*numbers), batch(0)]), "day")
    assert len(files) == OPEN_FILES_MAX + 4  # the first was closed, and needed once more
    rows = [n for found in contents(tmp_path, files).values() for n in found]
    assert sorted(rows) == sorted([*numbers, 0])


def test_a_task_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(*(10 * day for day in range(OPEN_FILES_MAX + 3)))
        raise RuntimeError("the source has gone")

    with pytest.raises(RuntimeError, match="the source has gone"):
        write(tmp_path, failing(), "day")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (("year",), "there is no column year in n, day, is_odd"),
        (("at",), "at is timestamp"),
        (("n", "day", "is_odd", "at"), "at is timestamp"),
        (("n", "day", "is_odd"), None),
    ],
)
def test_columns_that_cannot_split_are_refused(
    columns: tuple[str, ...], problem: str | None
) -> None:
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
    if problem is None:
        check_partition_columns(schema, columns)
        with pytest.raises(PartitionRefused, match="names every column"):
            check_partition_columns(SCHEMA, columns)
        return
    with pytest.raises(PartitionRefused, match=problem):
        check_partition_columns(schema, columns)


def test_options_do_not_depend_on_case() -> None:
    options = parse_delta_options(
        {"PATH": "file:/lake/t", "partitioncolumns": "a, b", "txnAppId": "me", "TxnVersion": "7"},
        is_stream=False,
    )
    assert options.table == TableLocation("/lake/t")
    assert options.partition_columns == ("a", "b")
    assert (options.txn_app_id, options.txn_version) == ("me", 7)


def test_an_object_store_has_the_options_of_deltalake() -> None:
    raw = {"path": "s3://lake/t", "storage.AWS_REGION": "eu-west-1", "storage.aws_allow_http": "1"}
    options = parse_delta_options(raw, is_stream=True)
    assert options.table == TableLocation(
        "s3://lake/t", (("aws_allow_http", "1"), ("aws_region", "eu-west-1"))
    )


@pytest.mark.parametrize(
    ("raw", "is_stream", "problem"),
    [
        ({}, True, "no path: give the directory"),
        ({"path": "ftp://host/t"}, True, "ftp is neither a directory nor an object store"),
        ({"path": "t", "storage.aws_region": "x"}, True, "storage.aws_region is for object stores"),
        ({"path": "t", "mergeSchema": "true"}, True, "unknown option mergeschema"),
        ({"path": "t", "txnVersion": "1"}, True, "numbers the batches of a stream"),
        ({"path": "t", "txnAppId": "me"}, False, "belong together"),
        ({"path": "t", "txnAppId": "me", "txnVersion": "-1"}, False, "not a whole number"),
    ],
)
def test_a_wrong_option_is_refused_in_words(
    raw: dict[str, str], is_stream: bool, problem: str
) -> None:
    with pytest.raises(OptionRefused, match=problem):
        parse_delta_options(raw, is_stream=is_stream)
