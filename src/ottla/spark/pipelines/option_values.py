"""Values of command-line options of pipelines. Imports no Spark: commands show them in help."""

from enum import StrEnum


class ArchiveFormat(StrEnum):
    PARQUET = "parquet"  # Spark's own sink
    DELTA = "delta"  # format("ottla-delta")


class SplitBy(StrEnum):
    """Columns that an archive can be split by."""

    DATE = "date"
    HOUR = "hour"
    TOPIC = "topic"
    PARTITION = "partition"


class OutputMode(StrEnum):
    APPEND = "append"  # a window's aggregates once, when they are final
    UPDATE = "update"  # whenever they change
