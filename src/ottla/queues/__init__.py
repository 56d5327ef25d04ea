"""Queues on the log: which records of a partition a share group has acquired and finished."""
