"""A client of Spark Connect, and the server that it starts for itself."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from ottla.spark.java_home import find_java_home
from spark.programs.round_trip import round_trip, tell


def main(address: str, home: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, home))
    builder = SparkSession.builder.remote("local[2]")
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    # The server has been told nothing: it finds the format by itself.
    found = round_trip(spark, address, home)
    tell({"client": type(spark).__module__, **found})
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
