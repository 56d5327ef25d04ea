"""Flushing: what is durable when, and what a checkpoint saves."""

import errno
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import SMALL, fill, names_of
from fakes.memory_files import MemoryFiles
from ottla.errors import (
    StorageFailed,
)
from ottla.model import (
    Offset,
)


def test_nothing_is_durable_before_it_is_synced(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, listener=listener)
    told: list[int] = []
    listener.on_durable = lambda: told.append(log.durable_offset)
    build.append(log, 3)
    assert log.durable_offset == 0
    log.flush()
    assert log.durable_offset == 3
    log.flush()
    assert told == [3]


def test_what_arrives_while_the_disk_works_is_not_yet_durable(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    build.append(log, 3)
    work = log.flushing.begin()
    assert work is not None
    fill(log, 2)
    work.run(files)
    log.flushing.end(work)
    assert log.durable_offset == 3
    rest = log.flushing.begin()
    assert rest is not None
    assert len(rest.sealed_files) == 2, "segments sealed meanwhile are synced before the active"
    assert rest.directory == log.directory


def test_a_flush_that_was_overtaken_by_a_truncation_proves_nothing(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    log.flush()
    build.append(log, 4)
    work = log.flushing.begin()
    assert work is not None
    work.run(files)
    log.truncate(Offset(1), build.NOW_MS)
    build.append(log, 2)
    log.flushing.end(work)
    assert log.durable_offset == 1


def test_a_roll_waits_for_no_disk_and_a_flush_stores_what_it_left(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 2)
    assert not names_of(files, log, ".index", ".timeindex")
    assert all(segment.is_warm for segment in log.sealed_segments)
    log.flush()
    assert len(names_of(files, log, ".index")) == len(log.sealed_segments) == 2
    assert not names_of(files, log, ".tmp", ".saving")
    after = files.cut_power(Random(1))
    again = build.log(after, SMALL, recovery_point=log.end_offset)
    assert again.end_offset == log.end_offset
    for segment in again.sealed_segments:
        segment.open(after, None)


def test_a_segment_that_goes_before_its_indexes_are_stored_leaves_nothing(
    files: MemoryFiles,
) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    work = log.flushing.begin()
    assert work is not None
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 1
    work.run(files)
    log.flushing.end(work)
    assert not [name for name in names_of(files, log, "") if name.startswith(f"{0:020d}")]
    assert not names_of(files, log, ".tmp", ".saving")
    assert len(names_of(files, log, ".index")) == len(log.sealed_segments)


def test_a_failed_sync_is_never_retried_and_nothing_is_durable(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    files.fail_next("sync", errno.EIO)
    with pytest.raises(StorageFailed):
        log.flush()
    assert log.durable_offset == 0
    assert log.flushing.begin() is None
    log.flush()
    assert log.durable_offset == 0


@pytest.mark.parametrize("suffix", [".index.saving", ".snapshot"])
def test_what_only_shortens_the_next_start_may_fail_on_a_full_disk(
    files: MemoryFiles, suffix: str
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    files.fail_next("create", errno.ENOSPC, suffix=suffix)
    log.flush()
    assert not files.has_faults
    assert log.durable_offset == log.end_offset
    assert log.offline_reason is None
    assert not names_of(files, log, ".saving")


@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename"])
def test_a_disk_that_fails_while_saving_is_a_failing_disk(
    files: MemoryFiles, operation: str
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    files.fail_next(operation, errno.EIO, suffix=".saving")
    with suppress(StorageFailed):  # what was appended is on disk when names are given
        log.flush()
    assert log.offline_reason is not None


def test_what_is_saved_while_its_segment_is_sealed_does_not_replace_what_sealing_stored(
    files: MemoryFiles,
) -> None:
    log = build.log(files)
    build.enlarge(log)
    log.flushing.save()
    work = log.flushing.begin()
    assert work is not None
    log.roll(build.NOW_MS)
    work.run(files)
    log.flushing.end(work)
    log.flush()
    assert not names_of(files, log, ".tmp", ".saving")
    for segment in log.sealed_segments:
        newest_ms = segment.indexes.max_timestamp_ms
        assert newest_ms >= build.NOW_MS
        segment.cool_down()
        segment.open(files, None)
        assert segment.indexes.max_timestamp_ms == newest_ms


def test_a_checkpoint_beyond_what_is_synced_is_our_mistake(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log, 3)
    with pytest.raises(AssertionError, match="3 is not synced"):
        log.flushing.note_checkpoint(Offset(3))
    log.flush()
    log.flushing.note_checkpoint(Offset(3))
    assert log.flushing.checkpointed_offset == 3


def test_a_flush_of_more_than_was_written_is_our_mistake(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log)
    work = log.flushing.begin()
    assert work is not None
    work.run(files)
    with pytest.raises(AssertionError, match="behind the end"):
        log.flushing.end(work._replace(end_offset=Offset(9)))
