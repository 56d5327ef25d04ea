"""The lens: how a reader sees a log in which some records are hidden.

Batches without hidden records go on as they are, those with some are rebuilt, and a run of hidden
offsets becomes a *skip*: a control batch without producer and with one COMMIT record, which every
client passes over silently while its position moves. A skip never stands for a control batch: a
reader that misses an ABORT marker drops what the producer commits next.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.model import NO_EPOCH, NO_PRODUCER, NO_SEQUENCE, NO_TIMESTAMP, LeaderEpoch, Offset
from ottla.records.batch import (
    CONTROL,
    HIDES,
    HIDES_ALL,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_EPOCH,
    BatchHeader,
    Buffer,
    MarkerKind,
    assemble,
    batches,
)
from ottla.records.hidden_records import rebuild_shown, shown_slices
from ottla.records.record_codec import write_record

REBUILT_MAX: Final = 32  # batches of one reading: about a millisecond
_LENGTH_AND_ATTRIBUTES: Final = struct.Struct(">8xi9xh")
_SKIP_KEY: Final = struct.pack(">hh", 0, MarkerKind.COMMIT)
_SKIP_VALUE: Final = struct.pack(">hi", 0, 0)


class ShownBatch(NamedTuple):
    """A batch of a transaction that a reader sees."""

    producer_id: int
    base_offset: Offset


class View(NamedTuple):
    """The batches that a reader gets for a part of a log."""

    data: bytes
    end_offset: Offset  # where to read on
    is_skip: bool  # it has nothing but skips
    transactional: list[ShownBatch]


def hides_any(data: Buffer) -> bool:
    """True if one of the whole batches has a hidden record."""
    position, end = 0, len(data)
    unpack, least = _LENGTH_AND_ATTRIBUTES.unpack_from, _LENGTH_AND_ATTRIBUTES.size
    while position + least <= end:
        length, attributes = unpack(data, position)
        if attributes & HIDES:
            return True
        position += length + LENGTH_END
    return False


class Lens:
    """Collects what one reader sees of batches that follow each other."""

    def __init__(self, decompressed_bytes_max: int) -> None:
        self._bytes_max = decompressed_bytes_max
        self._parts: list[Buffer] = []
        self._gap_start: int | None = None
        self._end = 0
        self._epoch = NO_EPOCH
        self._is_skip = True
        self._rebuilt = 0
        self._transactional: list[ShownBatch] = []

    @property
    def is_skip(self) -> bool:
        """True as long as nothing is shown."""
        return self._is_skip

    def take(self, data: Buffer, *, is_whole: bool = False) -> bool:
        """Look at whole batches; False if it ended before the last of them, after much work.

        With `is_whole` it looks at all of them.
        """
        for header, batch in batches(data):
            if self._rebuilt >= REBUILT_MAX and not is_whole:
                return False
            self._take(header, batch)
        return True

    def _take(self, header: BatchHeader, batch: memoryview) -> None:
        shown: Buffer | None = batch
        last = header.last_offset
        if header.attributes & HIDES and not header.is_control:
            shown = None
            if not header.attributes & HIDES_ALL:
                self._rebuilt += 1
                shown = rebuild_shown(batch, header, self._bytes_max)
                if shown is not None:
                    last = _last_offset(shown)
        if shown is None:
            if self._gap_start is None:
                self._gap_start = header.base_offset
        else:
            self._close_gap()
            self._parts.append(shown)
            self._is_skip = False
            if header.is_transactional and not header.is_control:
                base = ShownBatch(header.producer_id, Offset(header.base_offset))
                self._transactional.append(base)
            if last < header.last_offset:
                self._gap_start = last + 1
        self._end = header.next_offset
        self._epoch = LeaderEpoch(header.leader_epoch)

    def _close_gap(self) -> None:
        if self._gap_start is not None:
            self._parts.append(build_skip(Offset(self._gap_start), Offset(self._end), self._epoch))
            self._gap_start = None

    def finish(self) -> View:
        """The batches that the reader gets for all that was taken."""
        self._close_gap()
        return View(b"".join(self._parts), Offset(self._end), self._is_skip, self._transactional)


def _last_offset(batch: Buffer) -> Offset:
    header, _ = next(batches(batch))
    return header.last_offset


def build_skip(start: Offset, end: Offset, leader_epoch: LeaderEpoch) -> bytearray:
    """The batch that takes a reader from `start` to `end`, with the epoch of the last one there."""
    assert start < end, "a skip covers at least one offset"
    last_delta = end - start - 1
    payload = bytearray()
    write_record(payload, 0, last_delta, _SKIP_KEY, _SKIP_VALUE, ())
    header = BatchHeader(
        base_offset=start,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=CONTROL,
        last_offset_delta=last_delta,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    return assemble(header, payload)


def shown_aborted(
    aborted: Iterable[tuple[int, int, int]], shown: Iterable[ShownBatch]
) -> list[tuple[int, int]]:
    """Producer and first shown offset of the aborted transactions that a reader sees a part of.

    `aborted` has the producer, the first and the last offset of each.
    """
    found = []
    batches_shown = list(shown)
    for producer_id, first, last in aborted:
        seen = [
            one.base_offset
            for one in batches_shown
            if one.producer_id == producer_id and first <= one.base_offset <= last
        ]
        if seen:
            found.append((producer_id, int(min(seen))))
    return found


def shown_stretches(
    batch: Buffer, header: BatchHeader, decompressed_bytes_max: int
) -> list[tuple[Offset, Offset]]:
    """The runs of offsets, half-open, that a batch with hidden records shows."""
    if header.attributes & HIDES_ALL:
        return []
    _, shown = shown_slices(batch, header, decompressed_bytes_max)
    runs: list[tuple[Offset, Offset]] = []
    for _, _, _, delta, _, _ in shown:
        offset = Offset(header.base_offset + delta)
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], Offset(offset + 1))
        else:
            runs.append((offset, Offset(offset + 1)))
    return runs
