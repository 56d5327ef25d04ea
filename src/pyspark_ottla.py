"""Registers `format("ottla")` without a call: Spark imports modules named `pyspark_*`."""

from ottla.spark.registration import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
