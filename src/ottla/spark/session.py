"""A Spark session with the settings that pipelines need."""

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from ottla.spark.java_home import find_java_home
from ottla.spark.kernel import warn_if_missing
from ottla.spark.progress import BatchDone, BatchListener
from ottla.spark.registration import register
from ottla.spark.spark_home import find_spark_home

_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",  # Kafka's timestamps have no zone
    "spark.python.unix.domain.socket.enabled": "true",  # 40 ms less for each micro-batch
    "spark.sql.python.filterPushdown.enabled": "true",  # for the option filterPushdown
    # A micro-batch that is written again must have the same rows in the same tasks.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,  # state beyond the heap
    "spark.ui.showConsoleProgress": "false",
}
_ON_ONE_MACHINE: Final = {
    # The default forks 20 processes for each micro-batch on local files. Object stores need it.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    name: str = "ottla",
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    has_ui: bool = False,
    on_batch: Callable[[BatchDone], None] | None = None,
) -> SparkSession:
    """A session in which `format("ottla")` works; `conf` wins over what is set here.

    `on_batch` is called for every micro-batch of every stream, in a Spark thread.

    Finds Java, and sets the Python of Spark's workers: by default Spark runs the `python3` on the
    path, which seldom has the packages.
    """
    warn_if_missing()
    # PySpark warns of pandas 3 whenever it is installed; nothing here uses pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home())
    if master.startswith("local"):  # other machines have a SPARK_HOME of their own
        package = Path(pyspark.__file__).parent
        if (home := find_spark_home(os.environ, _cache(), package)) is not None:
            os.environ["SPARK_HOME"] = str(home)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings(master, has_ui=has_ui, conf=conf or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR" if "spark.log.level" not in (conf or {}) else "WARN")
    register(spark)
    if on_batch is not None:
        spark.streams.addListener(BatchListener(on_batch))
    return spark


def settings(master: str, *, has_ui: bool, conf: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a session; `conf` wins over the defaults."""
    found = _EVERYWHERE | {"spark.ui.enabled": str(has_ui).lower()}
    if master.startswith("local"):
        found |= _ON_ONE_MACHINE
        found["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 1))
    return found | dict(conf)


def java_home() -> Path:
    """A directory for JAVA_HOME with a Java that runs Spark, or `NoJava`."""
    return find_java_home(os.environ, _cache())


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ottla")
