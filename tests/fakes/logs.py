"""Logs with small segments, and what is in them."""

from pathlib import Path

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.model import LeaderEpoch
from ottla.records.batch import batches, records
from ottla.storage.log import Log
from ottla.storage.log_append import Appended
from ottla.storage.segment import Segment

SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def append(log: Log, batch: bytearray, epoch: int = build.EPOCH) -> Appended:
    return log.append_as_leader(batch, LeaderEpoch(epoch), build.NOW_MS)


def fill(log: Log, segments: int) -> None:
    """Append one batch after the other until there are so many sealed segments."""
    while len(log.sealed_segments) < segments:
        build.append(log, 2, value=bytes(100))


def segments_of(log: Log) -> list[Segment]:
    """Every segment in order, the active one last."""
    return [*log.sealed_segments, log.active_segment]


def offsets_of(log: Log, data: bytes) -> list[int]:
    return [record.offset for _, view in batches(data) for record in records(view)]


def names_of(files: MemoryFiles, log: Log, *suffixes: str) -> list[str]:
    return [one.name for one in files.list(log.directory) if one.name.endswith(suffixes)]


def state_of(log: Log) -> tuple[object, ...]:
    """Everything that a refused batch must not change."""
    return (
        log.end_offset,
        log.size_bytes,
        log.epochs.entries(),
        log.producers.encode(),
        log.durable_offset,
    )


def log_of(files: MemoryFiles, count: int, config: TopicConfig | None = None) -> Log:
    """A log of `count` batches of two records, each of the same size."""
    log = build.log(files, config)
    for number in range(count):
        build.append(log, 2, value=b"%050d" % number)
    return log


def rewrite(files: MemoryFiles, path: Path, content: bytes) -> None:
    """Give a file other content."""
    files.create(path).append(content)


def base_offsets(log: Log) -> list[int]:
    """The offset of each batch that can be read, from the log's start to its end."""
    found = []
    offset = log.start_offset
    while (part := log.read(offset, log.end_offset, 1 << 20, at_least_one=True)) is not None:
        found += [header.base_offset for header, _ in batches(log.read_bytes(part))]
        offset = part.end_offset
    return found
