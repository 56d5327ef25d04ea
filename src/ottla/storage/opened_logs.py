"""Summary of an opening of a data directory: what was there, and what recovery did."""

from typing import NamedTuple

from ottla.storage.log_dir import LogDir


class OpenedLogs(NamedTuple):
    """Totals of the logs of a directory, right after they were opened."""

    logs: int
    clean_stop: bool  # the directory had the mark of one
    recovered_logs: int  # of which batches were read
    recovered_bytes: int
    recovered_offsets: int  # as many as records, but for gaps that compaction left
    cut_bytes: int  # of torn tails
    damaged_ranges: int
    strays: int

    @classmethod
    def of(cls, log_dir: LogDir) -> "OpenedLogs":
        logs = log_dir.logs.values()
        return cls(
            logs=len(logs),
            clean_stop=log_dir.was_clean,
            recovered_logs=sum(log.recovered_bytes > 0 for log in logs),
            recovered_bytes=sum(log.recovered_bytes for log in logs),
            recovered_offsets=sum(log.recovered_offsets for log in logs),
            cut_bytes=sum(log.cut_bytes for log in logs),
            damaged_ranges=sum(len(log.corrupt) for log in logs),
            strays=log_dir.directories.stray_count,
        )
