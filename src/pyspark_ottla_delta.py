"""Makes `format("ottla-delta")` known without a call: Spark finds one format in a module."""

from ottla.spark.registration import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
