"""A user's program with `format("ottla")`: the same code wherever Spark runs."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark.worker_start import retry_worker_start

ROWS = 200
TIMEOUT_S = 240


def round_trip(spark: SparkSession, address: str, home: Path) -> dict[str, Any]:
    """Batch to a topic, stream from there to another, batch from there."""
    servers = {"kafka.bootstrap.servers": address}
    numbers = spark.range(0, ROWS, 1, 4).selectExpr(
        "CAST(id AS STRING) AS value", "CONCAT('key-', id) AS key"
    )
    numbers.write.format("ottla").options(**servers, topic="first").mode("append").save()

    def copy() -> None:
        query = (
            spark.readStream.format("ottla")
            .options(**servers, subscribe="first", startingOffsets="earliest")
            .option("minPartitions", "4")
            .load()
            .select("key", "value")
            .writeStream.format("ottla")
            .options(**servers, topic="second", checkpointLocation=str(home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)

    retry_worker_start(copy)
    return {
        topic: values_of(
            spark.read.format("ottla").options(**servers, subscribe=topic, minPartitions="4").load()
        )
        for topic in ("first", "second")
    }


def values_of(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def tell(found: dict[str, Any]) -> None:
    """The last line of a program."""
    print(json.dumps(found), flush=True)  # noqa: T201
