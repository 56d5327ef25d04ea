"""The start of a log: old segments go, and their files with them."""

from dataclasses import replace

import pytest

from fakes import build
from fakes.listeners import FakeLogListener
from fakes.logs import SMALL, append, fill
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import (
    OffsetOutOfRange,
)
from ottla.model import (
    Offset,
    ProducerId,
    TimestampMs,
)


def test_old_segments_go_and_the_log_starts_later(files: MemoryFiles) -> None:
    log = build.log(files, SMALL)
    fill(log, 3)
    second = log.sealed_segments[1].base_offset
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 1
    assert log.start_offset == second
    assert not any(entry.name.startswith(f"{0:020d}") for entry in files.list(log.directory))
    with pytest.raises(OffsetOutOfRange):
        log.read(Offset(0), log.end_offset, 100, at_least_one=True)


def test_somebody_else_removes_the_files_of_old_segments(files: MemoryFiles) -> None:
    listener = FakeLogListener()
    log = build.log(files, SMALL, listener=listener)
    fill(log, 3)
    discarded = listener.discarded
    log.config = replace(SMALL, retention_bytes=log.size_bytes - log.sealed_segments[0].size_bytes)
    assert log.retention.delete_old_segments(build.NOW_MS, log.end_offset) == 1
    first = [one.name for one in files.list(log.directory) if one.name.startswith(f"{0:020d}")]
    assert first == [f"{0:020d}.log.deleted"]
    killed = files.kill()
    again = build.log(killed, SMALL, start_offset=log.start_offset)
    assert again.start_offset == log.start_offset
    assert not [e.name for e in killed.list(log.directory) if e.name.endswith(".deleted")]
    discarded[0].remove()
    discarded[0].remove()
    assert not [e.name for e in files.list(log.directory) if e.name.endswith(".deleted")]


def test_even_the_active_segment_goes_when_all_of_it_is_too_old(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(retention_ms=1000))
    build.append(log, 3)
    assert log.retention.delete_old_segments(TimestampMs(build.NOW_MS + 500), log.end_offset) == 0
    assert log.retention.delete_old_segments(TimestampMs(build.NOW_MS + 2000), log.end_offset) == 1
    assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
    assert build.append(log) == 3


def test_records_without_a_timestamp_age_by_when_they_were_written(files: MemoryFiles) -> None:
    hour_ms = 3_600_000
    log = build.log(files, TopicConfig(segment_bytes=500, retention_ms=hour_ms))
    for _ in range(3):
        append(log, build.batch(value=bytes(300), timestamp_ms=-1))
    files.now_ms += hour_ms
    append(log, build.batch(value=bytes(300), timestamp_ms=-1))
    assert (
        log.retention.delete_old_segments(TimestampMs(build.NOW_MS + hour_ms), log.end_offset) == 0
    )
    assert (
        log.retention.delete_old_segments(TimestampMs(build.NOW_MS + hour_ms + 1), log.end_offset)
        == 3
    )
    assert (
        log.retention.delete_old_segments(
            TimestampMs(build.NOW_MS + 2 * hour_ms + 1), log.end_offset
        )
        == 1
    )


def test_producers_are_known_after_a_stop_when_the_log_begins_inside_a_segment(
    files: MemoryFiles,
) -> None:
    log = build.log(files, SMALL)
    sent = build.batch(2, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(sent, build.EPOCH, build.NOW_MS)
    log.roll(build.NOW_MS)
    build.append(log, 3)
    log.flush()
    log.advance_start(Offset(3))
    assert (log.sealed_segments, log.active_segment.base_offset) == ((), 2)
    again = build.log(
        files.kill(), SMALL, start_offset=log.start_offset, recovery_point=log.end_offset
    )
    known = again.producers.get(ProducerId(7))
    assert known is not None
    assert known.next_sequence == 2
