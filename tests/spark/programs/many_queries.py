"""An application that starts eight streaming queries together."""

import os
import sys
from pathlib import Path
from typing import Any, Final

from ottla.spark import session
from spark.process_times import ProcessTimes
from spark.programs.round_trip import tell
from spark.queries_together import Place, QueriesTogether

SINKS: Final = (
    "topic",
    "memory",
    "topic",
    "foreachBatch",
    "topic",
    "ottla-delta",
    "topic",
    "parquet",
)


def main(address: str, home: Path) -> None:
    conf = {"spark.driver.memory": "512m", "spark.sql.warehouse.dir": str(home / "warehouse")}
    spark = session("many", master="local[2]", conf=conf)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    times = ProcessTimes(jvm=int(gateway.proc.pid), driver=os.getpid())
    queries = QueriesTogether(spark, Place(address, home), SINKS)
    found: dict[str, Any] = {"failed": queries.wait(), "cpu_s": times.spent_s()}
    if not found["failed"]:
        found |= {"written": queries.written(), "first_batches_s": queries.first_batches_s()}
    queries.stop()
    tell(found)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
