"""The content of records that wait, read from the log; batches stay open for a while."""

import logging
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.errors import ApiError, InvalidRecord
from ottla.model import NO_TIMESTAMP, Offset, TimestampMs
from ottla.queues.pending_records import Waiting
from ottla.queues.waiting_copies import Content, CopiedHeaders, Original, read_copied
from ottla.records.batch import (
    LEADER_WRITTEN,
    BatchHeader,
    Record,
    decompressed_bytes_max,
    read_header,
)
from ottla.records.compression import Codec
from ottla.records.hidden_records import record_starts
from ottla.records.record_codec import read_record
from ottla.records.record_parts import read_parts
from ottla.records.record_slices import payload_of
from ottla.storage.log import Log

log = logging.getLogger("ottla.broker")

OPEN_BYTES_MAX: Final = 8 << 20  # of batches that are kept open
_OPEN_UNITS: Final = 6  # for a batch that is opened, and for its content:
_BYTES_PER_UNIT: Final = 4096


class _Opened(NamedTuple):
    """A batch with records that wait."""

    header: BatchHeader
    payload: bytes
    starts: list[int]  # of the records, by offset delta


class WaitingContents:
    """Reads records that wait. Those due together are often in few batches, or in all of them."""

    def __init__(self, partition_log: Log) -> None:
        self._log = partition_log
        self._opened: OrderedDict[int, _Opened] = OrderedDict()  # by base offset, last used last
        self._bases: list[int] = []  # of those, ascending
        self._open_bytes = 0
        self.opened_bytes = 0  # in all, of batches that were opened
        self.units = 0  # of work beside copying, each about what a record takes

    def read(self, waiting: Waiting) -> Content | None:
        """The record that waits; None if it cannot be read now."""
        try:
            opened = self._open(waiting.offset)
            header = opened.header
            start = opened.starts[waiting.offset - header.base_offset]
            delta_ms, _, key, value, headers, _ = read_record(opened.payload, start)
        except (ApiError, IndexError, UnicodeDecodeError) as problem:
            self._note_unreadable(waiting, problem)
            return None
        record = Record(
            offset=Offset(waiting.offset),
            timestamp_ms=_time_of(header, delta_ms),
            key=key,
            value=value,
            headers=headers,
        )
        return record, bool(header.attributes & LEADER_WRITTEN)

    def originals(self, found: Iterable[Waiting]) -> Iterator[Original | None]:
        """Each of the records that wait, for a copy of it; None for one that cannot be read now.

        Records that are due together most often follow each other in a batch, and have few
        different headers: the batch is looked up once for those, and headers are read once.
        """
        begin = end = base_ms = 0  # of the batch that is open
        append_ms: int | None = None
        is_own, codec, payload, starts = False, Codec.NONE, b"", list[int]()
        copied: dict[bool, dict[bytes, CopiedHeaders]] = {False: {}, True: {}}
        for waiting in found:
            offset = waiting.offset
            try:
                if not begin <= offset < end:
                    header, payload, starts = self._open(offset)
                    begin, end, codec = header.base_offset, header.next_offset, header.codec
                    is_own = bool(header.attributes & LEADER_WRITTEN)
                    base_ms = header.base_timestamp_ms
                    append_ms = header.max_timestamp_ms if header.is_log_append_time else None
                at = offset - begin
                delta_ms, key_and_value, encoded = read_parts(payload, starts[at], starts[at + 1])
                headers = copied[is_own].get(encoded)
                if headers is None:
                    self.units += 1
                    headers = copied[is_own][encoded] = read_copied(encoded, is_own=is_own)
            except (ApiError, IndexError) as problem:
                self._note_unreadable(waiting, problem)
                yield None
                continue
            sent_ms = max(base_ms + delta_ms, NO_TIMESTAMP) if append_ms is None else append_ms
            yield Original(key_and_value, headers, sent_ms, codec)

    def _note_unreadable(self, waiting: Waiting, problem: Exception) -> None:
        log.error(
            "record that waits cannot be read",
            extra={
                "tp": self._log.tp,
                "ticket": waiting.ticket,
                "offset": waiting.offset,
                "reason": problem,
            },
        )

    def read_with(self, waiting: Waiting, key: bytes) -> Content | None:
        """The record that waits, if it has this key; None if it has another, or cannot be read."""
        try:
            opened = self._open(waiting.offset)
            at = waiting.offset - opened.header.base_offset
            # The search is fast, and most records have another key.
            if opened.payload.find(key, opened.starts[at], opened.starts[at + 1]) < 0:
                return None
        except (ApiError, IndexError):
            pass  # `read` notes it
        content = self.read(waiting)
        return content if content is not None and content[0].key == key else None

    def is_open(self, waiting: Waiting) -> bool:
        """True if reading a record opens no batch, which takes milliseconds for a large one."""
        return self._find(waiting.offset) is not None

    def _find(self, offset: int) -> _Opened | None:
        """The batch of an offset, if it is open."""
        at = bisect_right(self._bases, offset) - 1
        found = self._opened[self._bases[at]] if at >= 0 else None
        return found if found is not None and offset < found.header.next_offset else None

    def _open(self, offset: int) -> _Opened:
        known = self._find(offset)
        if known is not None:
            self._opened.move_to_end(known.header.base_offset)
            return known
        found = self._log.read(Offset(offset), self._log.end_offset, 1, at_least_one=True)
        if found is None:
            raise InvalidRecord(f"no record at {offset}")
        data = self._log.read_bytes(found)
        header = read_header(data)
        bytes_max = decompressed_bytes_max(self._log.config.max_message_bytes)
        payload = payload_of(data, header, bytes_max)
        opened = _Opened(header, payload, record_starts(payload, header.record_count))
        self._opened[header.base_offset] = opened
        insort(self._bases, header.base_offset)
        self._open_bytes += len(payload)
        self.opened_bytes += len(payload)
        self.units += _OPEN_UNITS + len(payload) // _BYTES_PER_UNIT
        while self._open_bytes > OPEN_BYTES_MAX and len(self._opened) > 1:
            base, closed = self._opened.popitem(last=False)
            self._bases.remove(base)
            self._open_bytes -= len(closed.payload)
        return opened


def _time_of(header: BatchHeader, delta_ms: int) -> TimestampMs:
    """The timestamp of a record of a batch."""
    if header.is_log_append_time:
        return TimestampMs(header.max_timestamp_ms)
    return TimestampMs(max(header.base_timestamp_ms + delta_ms, NO_TIMESTAMP))
