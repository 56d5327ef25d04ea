"""An environment as hostile as Spark's users meet it: see `test_anywhere.bare`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.spark import session
from ottla.spark.registration import OttlaDataSource
from ottla.spark.source import BatchReader
from spark.programs.round_trip import ROWS, round_trip, tell, values_of


class DyingReader(BatchReader):
    """A reader whose process exits after the first batch of a task's first attempt."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                os._exit(1)


class DyingSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def reader(self, schema: StructType) -> DataSourceReader:
        made = super().reader(schema)
        assert isinstance(made, BatchReader)
        return DyingReader(made.options, schema)


def is_found(spark: SparkSession) -> bool:
    try:
        spark.read.format("ottla").load()
    except (PySparkException, Py4JJavaError) as problem:
        return "DATA_SOURCE_NOT_FOUND" not in str(problem)
    return True


def main(address: str, home: Path) -> None:
    spark = session("bare", master="local[2,4]", conf={"spark.driver.memory": "512m"})
    found = {"is_found_after_register": is_found(spark), "python": os.environ["PYSPARK_PYTHON"]}
    # A session beside the first, which has its own list of sources and was told of none.
    found["is_found_by_itself"] = is_found(spark.newSession())
    found |= round_trip(spark, address, home)
    spark.dataSource.register(DyingSource)
    options = {"kafka.bootstrap.servers": address, "subscribe": "first", "minPartitions": "2"}
    survived = values_of(spark.read.format("dying").options(**options).load())
    found["survived"] = survived == list(range(ROWS))
    found["pandas"] = "pandas" in sys.modules
    tell(found)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
