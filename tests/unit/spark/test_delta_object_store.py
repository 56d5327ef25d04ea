"""Delta tables in an object store, as in a directory: moto's server stands in for S3.

A process of its own: deltalake holds Python's lock while it writes, so a thread could not respond.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import boto3
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from ottla.spark.batch_decisions import BatchRefused
from ottla.spark.delta_sink import DeltaStreamWriter, WrittenFiles, stream_writer

SCHEMA = StructType([StructField("n", LongType()), StructField("is_odd", BooleanType())])
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
TABLE = "s3://lake/orders"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    """Storage options of a store with an empty bucket `lake`."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)
        url = next(match.group() for match in found if match)
        # It logs every request, and would wait for a reader.
        Thread(target=server.stderr.read, name="moto-log", daemon=True).start()
        yield KEYS | {"aws_endpoint_url": url, "aws_allow_http": "true"}
        server.terminate()


@pytest.fixture
def lake(storage: dict[str, str]) -> Iterator["Lake"]:
    lake = Lake(storage)
    lake.client.create_bucket(Bucket="lake")
    yield lake
    for name in lake.names():
        lake.client.delete_object(Bucket="lake", Key=name)
    lake.client.delete_bucket(Bucket="lake")
    lake.client.close()


class Lake:
    """A bucket, seen by Amazon's client."""

    def __init__(self, storage: dict[str, str]) -> None:
        self.storage = storage
        self.client = boto3.client(
            "s3",
            endpoint_url=storage["aws_endpoint_url"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    def names(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket="lake")
        return [one["Key"] for one in found.get("Contents", [])]

    def data_files(self) -> set[str]:
        return {name for name in self.names() if name.endswith(".parquet")}

    def table(self) -> DeltaTable:
        return DeltaTable(TABLE, storage_options=self.storage)

    def writer(self, **more: str) -> DeltaStreamWriter:
        options = {"path": TABLE, "txnAppId": "query", "checkpointLocation": "c"}
        named = {f"storage.{name}": value for name, value in self.storage.items()}
        return stream_writer(options | named | more, SCHEMA, overwrite=False)

    def rows(self) -> list[int]:
        return sorted(self.table().to_pyarrow_table().column("n").to_pylist())


def write(writer: DeltaStreamWriter, *numbers: int) -> WrittenFiles:
    columns = {"n": pa.array(numbers, pa.int64()), "is_odd": [n % 2 == 1 for n in numbers]}
    done = writer.write(iter([pa.record_batch(columns)]))
    assert isinstance(done, WrittenFiles)
    return done


@pytest.mark.slow
def test_batches_are_added_once(lake: Lake) -> None:
    writer = lake.writer(partitionColumns="is_odd")
    writer.commit([write(writer, 1, 2), write(writer, 3)], batchId=0)
    files = lake.data_files()
    assert len(files) == 3
    assert lake.rows() == [1, 2, 3]
    assert lake.table().metadata().partition_columns == ["is_odd"]
    writer.commit([write(writer, 1, 2, 3)], batchId=0)
    assert lake.rows() == [1, 2, 3]
    assert lake.data_files() == files, "the files of the repetition are removed"
    with pytest.raises(BatchRefused, match="with other content: 3 rows"):
        writer.commit([write(writer, 4)], batchId=0)
    assert lake.data_files() == files
    writer.commit([write(writer, 4)], batchId=1)
    assert lake.rows() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_failed_task_and_an_aborted_batch_leave_nothing_behind(lake: Lake) -> None:
    writer = lake.writer()

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array([1], pa.int64()), "is_odd": [True]})
        raise RuntimeError("the source has gone")

    with pytest.raises(RuntimeError, match="the source has gone"):
        writer.write(failing())
    assert lake.names() == []
    done = write(writer, 1)
    assert len(lake.names()) == 1
    writer.abort([done, None], batchId=0)
    assert lake.names() == []


@pytest.mark.slow
def test_two_drivers_at_once_do_not_replace_each_others_commits(lake: Lake) -> None:
    writers = [lake.writer(), lake.writer(txnAppId="other")]
    writers[0].commit([write(writers[0], 0)], batchId=0)
    version, together = lake.table().version(), Barrier(2)

    def commit_all(number: int) -> None:
        for batch in range(1, 5):
            done = write(writers[number], 10 * number + batch)
            together.wait(TIMEOUT_S)
            writers[number].commit([done], batchId=batch)

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(commit_all, number) for number in range(2)]:
            done.result(TIMEOUT_S)
    assert lake.table().version() == version + 8
    assert lake.rows() == [0, 1, 2, 3, 4, 11, 12, 13, 14]
