"""Spark looks for modules of this name: it is what makes `format("ottla")` known without a call."""

from ottla.spark.registration import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
