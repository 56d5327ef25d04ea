"""What can be chosen for a pipeline. Needs no Spark: commands show it in their help."""

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
    APPEND = "append"  # a window's figures once, when nothing can change them any more
    UPDATE = "update"  # whenever they change
