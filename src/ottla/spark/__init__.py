"""PySpark reads and writes topics: `format("ottla")`, without a jar.

    import ottla.spark

    spark = ottla.spark.session()
    orders = spark.readStream.format("ottla").option("kafka.bootstrap.servers", ...)

`session` has all settings; `register` adds the format to a session of your own;
`with_json_values` parses JSON values by Spark's `from_json`; `source_metrics` has the metrics that
Spark's Kafka connector puts into the progress of a query.
"""

from typing import TYPE_CHECKING

from ottla.spark.quiet_workers import quiet_session_end
from ottla.spark.worker_imports import freeze_loaded_modules

if TYPE_CHECKING:
    from ottla.spark.json_values import with_json_values as with_json_values
    from ottla.spark.progress import source_metrics as source_metrics
    from ottla.spark.registration import register as register
    from ottla.spark.session import session as session

__all__ = ["register", "session", "source_metrics", "with_json_values"]

# Every Python process that reads, writes or plans for Spark imports this package first of all.
quiet_session_end()
freeze_loaded_modules()


def __getattr__(name: str) -> object:
    # On first use: parts of the package are also imported where Spark is not installed.
    if name == "register":
        from ottla.spark.registration import register  # noqa: PLC0415

        return register
    if name == "source_metrics":
        from ottla.spark.progress import source_metrics  # noqa: PLC0415

        return source_metrics
    if name == "with_json_values":
        from ottla.spark.json_values import with_json_values  # noqa: PLC0415

        return with_json_values
    if name == "session":
        from ottla.spark.session import session  # noqa: PLC0415

        # The import has bound this name to the module: bind it to the function.
        globals()[name] = session
        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
