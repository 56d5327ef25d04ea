"""The three indexes of a segment, in memory as arrays and on disk in Kafka's formats.

An index is a cache: everything in it can be read off the segment again. So it is written when a
segment is sealed, at checkpoints and on close, never per append, and a file that looks wrong is
simply rebuilt. What an offset or time index says is seen to be wrong when it is used. Aborted
transactions have a checksum, which is kept elsewhere, because the file has Kafka's format: in the
seal of a sealed segment, in the producer snapshots of the active one.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from ottla.model import NO_TIMESTAMP, Offset, Position, ProducerId, TimestampMs
from ottla.records.crc import crc32c

Buffer = bytes | bytearray | memoryview

_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
_ABORTED_VERSION: Final = 0


class IndexDamaged(Exception):
    """An index file is not what it should be: rebuild it from the segment."""


class AbortedDamaged(IndexDamaged):
    """The list of aborted transactions is not what was written: read the segment again."""


class OffsetIndex:
    """Sparse: a batch's last offset (relative to the segment) and its position, both rising."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, relative_offset: int, position: Position) -> None:
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def at_or_below(self, relative_offset: int) -> tuple[int, Position] | None:
        """The last entry whose batch does not end beyond `relative_offset`."""
        found = bisect_right(self._offsets, relative_offset)
        if not found:
            return None
        return self._offsets[found - 1], Position(self._positions[found - 1])

    def before_position(self, position: int) -> Position:
        """A position of a batch at or before `position`, the closest that is known."""
        found = bisect_right(self._positions, position)
        return Position(self._positions[found - 1] if found else 0)

    def last(self) -> tuple[int, Position] | None:
        return (self._offsets[-1], Position(self._positions[-1])) if self._offsets else None

    def truncate(self, position: int) -> None:
        """Forget the entries at or behind `position`."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:], self._positions[keep:]

    def lead_over(self, damaged: Position, relative_offset: int, resumed: Position) -> None:
        """Let no search walk from `damaged` to `resumed`: the offset before leads there at once."""
        first, last = bisect_left(self._positions, damaged), bisect_right(self._positions, resumed)
        self._offsets[first:last] = array("i", [relative_offset])
        self._positions[first:last] = array("i", [resumed])

    def encode(self) -> bytes:
        interleaved = array("i", bytes(8 * len(self._offsets)))
        interleaved[::2] = self._offsets
        interleaved[1::2] = self._positions
        return _big_endian(interleaved).tobytes()

    @classmethod
    def decode(cls, data: bytes, size_bytes: int) -> "OffsetIndex":
        """Read the index of a segment of `size_bytes`, unless it is damaged."""
        if len(data) % 8:
            raise IndexDamaged("half an entry in the offset index")
        interleaved = _big_endian(array("i", data))
        index = cls()
        index._offsets = interleaved[::2]
        index._positions = interleaved[1::2]
        if not _rises(index._offsets) or not _rises(index._positions):
            raise IndexDamaged("the offset index does not rise")
        if len(index) and (index._offsets[0] < 0 or index._positions[0] < 0):
            raise IndexDamaged("negative entries in the offset index")
        if len(index) and index._positions[-1] >= size_bytes:
            raise IndexDamaged("the offset index is longer than its segment")
        return index


class TimeIndex:
    """Sparse: the largest timestamp so far and the last offset of the batch that has it."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    def append(self, timestamp_ms: TimestampMs, relative_offset: int) -> None:
        """Note a new largest timestamp; one that is not larger is no news."""
        if timestamp_ms > self.last()[0]:
            self._timestamps.append(timestamp_ms)
            self._offsets.append(relative_offset)

    def below(self, timestamp_ms: TimestampMs) -> int:
        """A relative offset up to which every timestamp lies below; -1 when none is known."""
        found = bisect_left(self._timestamps, timestamp_ms)
        return self._offsets[found - 1] if found else -1

    def last(self) -> tuple[TimestampMs, int]:
        """The largest timestamp noted and the relative offset of its batch."""
        if not self._timestamps:
            return NO_TIMESTAMP, -1
        return TimestampMs(self._timestamps[-1]), self._offsets[-1]

    def truncate(self, relative_offset: int) -> None:
        """Forget the entries of batches that end at or behind `relative_offset`."""
        keep = bisect_left(self._offsets, relative_offset)
        del self._timestamps[keep:], self._offsets[keep:]

    def encode(self) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self._timestamps, self._offsets))

    @classmethod
    def decode(cls, data: bytes, offset_count: int) -> "TimeIndex":
        """Read the index of a segment of `offset_count` offsets, unless it is damaged."""
        if len(data) % _TIME_ENTRY.size:
            raise IndexDamaged("half an entry in the time index")
        index = cls()
        for timestamp_ms, relative_offset in _TIME_ENTRY.iter_unpack(data):
            index._timestamps.append(timestamp_ms)
            index._offsets.append(relative_offset)
        if not _rises(index._timestamps) or not _rises(index._offsets):
            raise IndexDamaged("the time index does not rise")
        if len(index) and not 0 <= index._offsets[0] <= index._offsets[-1] < offset_count:
            raise IndexDamaged("the time index leaves its segment")
        return index


class AbortedTransaction(NamedTuple):
    """A transaction that a reader of committed records must not see."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset  # of the marker that aborted it
    last_stable_offset: Offset  # everything below was decided when the marker was written


def encode_aborted(transactions: "list[AbortedTransaction]") -> bytes:
    return b"".join(_ABORTED_ENTRY.pack(_ABORTED_VERSION, *item) for item in transactions)


def aborted_crc(transactions: "list[AbortedTransaction]") -> int:
    """The checksum of a segment's aborted transactions; 0 when there are none."""
    return crc32c(encode_aborted(transactions))


def check_aborted(data: bytes, crc: int) -> None:
    """`AbortedDamaged` unless this is the checksum of these aborted transactions."""
    if crc32c(data) != crc:
        raise AbortedDamaged("the checksum of the aborted transactions does not match")


def decode_aborted(
    data: bytes, base_offset: Offset, crc: int | None = None
) -> "list[AbortedTransaction]":
    """Read a segment's aborted transactions, or `AbortedDamaged`: also if `crc` is another."""
    if crc is not None:
        check_aborted(data, crc)
    if len(data) % _ABORTED_ENTRY.size:
        raise AbortedDamaged("half an entry in the index of aborted transactions")
    found = []
    last_offset = base_offset - 1
    for version, *numbers in _ABORTED_ENTRY.iter_unpack(data):
        item = AbortedTransaction(*numbers)
        if version != _ABORTED_VERSION or item.last_offset <= last_offset:
            raise AbortedDamaged("the index of aborted transactions does not rise")
        last_offset = item.last_offset
        found.append(item)
    return found


def _big_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _rises(numbers: "array[int]") -> bool:
    if len(numbers) < 2:
        return True
    return all(map(int.__lt__, numbers, numbers[1:]))
