"""Promises of a partition to its readers and writers."""
