"""Appending what a leader sends: whole batches, as they are, in one write for each segment."""

from collections.abc import Iterator
from typing import NamedTuple

from ottla.config import INT32_MAX
from ottla.errors import CorruptBatch, StorageFailed
from ottla.model import LeaderEpoch, Offset, TimestampMs
from ottla.records.batch import (
    CONTROL,
    HEADER_BYTES,
    HIDES,
    BatchHeader,
    Marker,
    check_stored,
    read_header,
    read_marker,
)
from ottla.storage.log_core import LogCore
from ottla.storage.segment import WrittenBatch


class _Checked(NamedTuple):
    header: BatchHeader
    marker: Marker | None


def split_batches(records: memoryview) -> Iterator[memoryview]:
    """The whole batches in a part of a log."""
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_BYTES:
            raise CorruptBatch("the leader sent a part of a batch")
        size_bytes = read_header(records, position).size_bytes
        if size_bytes < HEADER_BYTES or position + size_bytes > len(records):
            raise CorruptBatch("the leader sent a part of a batch")
        yield records[position : position + size_bytes]
        position += size_bytes


def append_followed(core: LogCore, records: memoryview, now_ms: TimestampMs) -> None:
    """Append all batches of `records`. Each is checked before anything is written."""
    if core.offline_reason is not None:
        raise StorageFailed(core.offline_reason)
    checked = list(_check(records, core.end_offset))
    start = end = 0  # of the bytes that go into the active segment
    pending: list[_Checked] = []
    for one in checked:
        header = one.header
        if core.is_full(end - start, header.size_bytes, header.last_offset, now_ms):
            _write(core, records[start:end], pending, now_ms)
            core.roll(now_ms)
            start, pending = end, []
        end += header.size_bytes
        pending.append(one)
    _write(core, records[start:end], pending, now_ms)


def _check(records: memoryview, end_offset: Offset) -> Iterator[_Checked]:
    for batch in split_batches(records):
        header = check_stored(batch)
        if header.base_offset < end_offset or header.last_offset_delta < 0:
            raise CorruptBatch(f"offset {header.base_offset} has been written already")
        if header.last_offset - end_offset > INT32_MAX:
            raise CorruptBatch(f"offset {header.base_offset} is too far from {end_offset}: restart")
        yield _Checked(header, read_marker(batch) if header.attributes & CONTROL else None)
        end_offset = Offset(header.last_offset + 1)


def _write(
    core: LogCore, records: memoryview, batches: list[_Checked], now_ms: TimestampMs
) -> None:
    """Write batches that fit into the active segment, and note what they say."""
    if not batches:
        return
    headers = [one.header for one in batches]
    core.write_many(
        records,
        [WrittenBatch(one.size_bytes, one.last_offset, one.max_timestamp_ms) for one in headers],
    )
    for header, marker in batches:
        base_offset = Offset(header.base_offset)
        core.epochs.note(LeaderEpoch(header.leader_epoch), base_offset)
        if header.attributes & HIDES:
            core.has_hidden = True
        if marker is not None:
            core.note_marker(header, base_offset, marker, now_ms)
        elif header.producer_id >= 0 and not header.attributes & CONTROL:
            core.producers.note(header, base_offset, now_ms)
