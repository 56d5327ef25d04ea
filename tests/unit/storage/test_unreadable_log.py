"""Reads of a log that its disk refuses: every door raises StorageFailed, never an OSError."""

import errno
import os
from collections.abc import Callable

import pytest

from fakes import build
from fakes.logs import SMALL, append, fill
from fakes.memory_files import MemoryFiles
from ottla.errors import StorageFailed
from ottla.model import Offset, ProducerEpoch, ProducerId
from ottla.records.batch import Marker, MarkerKind
from ottla.storage.log import Log

READS: dict[str, Callable[[Log], object]] = {
    "read": lambda log: bytes_from(log, Offset(1)),
    "first_since": lambda log: log.times.first_since(build.NOW_MS),
    "newest": lambda log: log.times.newest(),
    "epoch_end": lambda log: log.epoch_end(build.EPOCH),
    "aborted": lambda log: log.aborted_transactions(Offset(0), log.end_offset),
}


def bytes_from(log: Log, start: Offset) -> bytes:
    found = log.read(start, log.end_offset, 10, at_least_one=True)
    assert found is not None
    return log.read_bytes(found)


def closed(files: MemoryFiles) -> Log:
    """A log with an aborted transaction, two epochs and several segments, none of them open."""
    log = build.log(files, SMALL)
    append(
        log, build.batch(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    aborted = Marker(MarkerKind.ABORT, 0)
    log.append_marker(aborted, ProducerId(1), ProducerEpoch(0), build.EPOCH, build.NOW_MS)
    fill(log, 6)
    for _ in range(20):
        append(log, build.batch(value=bytes(100), timestamp_ms=1), build.EPOCH + 1)
    log.flush()
    assert log.release_files()
    return log


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_disk_that_fails_takes_the_log_offline(
    files: MemoryFiles, read: Callable[[Log], object]
) -> None:
    log = closed(files)
    files.fail_next("open")
    with pytest.raises(StorageFailed, match=os.strerror(errno.EIO)):
        read(log)
    assert log.offline_reason is not None


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_log_that_had_no_descriptor_is_read_later(
    files: MemoryFiles, read: Callable[[Log], object]
) -> None:
    log = closed(files)
    expected = read(closed(MemoryFiles()))
    assert expected
    files.fail_next("open", errno.EMFILE)
    with pytest.raises(StorageFailed, match="cannot be opened now"):
        read(log)
    assert log.offline_reason is None
    assert read(log) == expected
