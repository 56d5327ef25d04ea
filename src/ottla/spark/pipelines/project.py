"""Projects for Spark's own `spark-pipelines` (declarative pipelines), and how it is called.

Its default catalog is in memory, so that a second run finds tables that are not in the catalog and
fails. With a catalog in the project, in embedded Derby, every run continues the last one.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from ottla.errors import UsageRefused

SPEC_FILES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
_SPEC: Final = """\
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
_TRANSFORMATIONS: Final = '''\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def records() -> DataFrame:
    """Every record of the topic; a run adds those that have come since the last one."""
    return (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", {bootstrap!r})
        .option("subscribe", {topic!r})
        .option("startingOffsets", "earliest")
        .option("valueFormat", "string")
        .load()
        .selectExpr("string(key) AS key", "value", "partition", "offset", "timestamp")
    )


@dp.materialized_view
def records_by_day() -> DataFrame:
    """How many there were each day."""
    days = spark.read.table("records").selectExpr("date(timestamp) AS day")
    return days.groupBy("day").count()
'''


@dataclass(frozen=True, slots=True)
class Project:
    """A directory with a declarative pipeline, its catalog and its storage."""

    directory: Path

    @property
    def spec(self) -> Path:
        """The specification file; raises `UsageRefused` if there is none."""
        for name in SPEC_FILES:
            if (self.directory / name).is_file():
                return self.directory / name
        raise UsageRefused(
            f"{self.directory} has no {SPEC_FILES[0]}; `ottla pipeline init NAME` makes a project"
        )

    def create(self, bootstrap: str, topic: str) -> list[Path]:
        """Write a project that runs as it is; raises `UsageRefused` if the directory exists."""
        if self.directory.exists():
            raise UsageRefused(f"{self.directory} is there already: choose another name")
        spec = _SPEC.format(
            name=self.directory.name, storage=(self.directory / "storage").absolute().as_uri()
        )
        files = {
            self.directory / SPEC_FILES[0]: spec,
            self.directory / "transformations" / "records.py": _TRANSFORMATIONS.format(
                bootstrap=bootstrap, topic=topic
            ),
            self.directory
            / ".gitignore": "/catalog/\n/catalog.log\n/spark-warehouse/\n/storage/\n",
        }
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return list(files)

    def command(self, action: str, conf: Mapping[str, str], more: tuple[str, ...]) -> list[str]:
        """The command line of `spark-pipelines`, to be run in the project's directory: its tables
        always become files in `spark-warehouse` there. `conf` wins over the defaults."""
        home = self.directory.absolute()
        settings = {
            # Static: a specification cannot change them.
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={home / 'catalog'};create=true"
            ),
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={home / 'catalog.log'}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.log.level": "ERROR",
            **conf,
        }
        program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        pairs = [
            argument
            for name, value in settings.items()
            for argument in ("--conf", f"{name}={value}")
        ]
        return [str(program), *pairs, action, "--spec", str(self.spec.absolute()), *more]


def environment_of(environment: Mapping[str, str], java_home: Path) -> dict[str, str]:
    """The environment of `spark-pipelines`, with its Spark, Java and Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return {
        **environment,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": path,
    }
