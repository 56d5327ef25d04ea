"""Registers `format("ottla-delta")` without a call: one module for each format."""

from ottla.spark.registration import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
