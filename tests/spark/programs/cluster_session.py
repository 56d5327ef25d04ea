"""The driver of an application on a standalone cluster."""

import os
import sys
from pathlib import Path

from ottla.spark import session
from spark.programs.round_trip import round_trip, tell

HOST = "127.0.0.1"


def main(address: str, home: Path, master: str) -> None:
    conf = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        # Nothing begins before both workers are there.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    spark = session("cluster", master=master, conf=conf)
    found = round_trip(spark, address, home)
    known = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    tell({"executors": len(known) - 1, **found})  # the driver is one of them
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
