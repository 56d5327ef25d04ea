"""Lines of plain text as columns: `produce` packs whole batches of them with the compiled kernel.

A line as an object takes 7 µs to read, place and pack. Here a block of lines is one buffer and a
table of positions in it, and only lines with keys are looked at one by one.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ottla.cli.outgoing import Outgoing
from ottla.cli.record_input import InputFormat, LineReader, no_separator
from ottla.client.partitioner import Partitioner
from ottla.model import TimestampMs
from ottla.records.batch import Packed
from ottla.records.record_codec import write_headers
from ottla.spark.kernel import IS_COMPILED, kernel

_OVERHEAD_BYTES_MAX: Final = 23  # length, attributes, two deltas, two sizes, no headers
_POSITIVE: Final = 0x7FFFFFFF

Numbers = array  # of 64 bits, signed


def can_read(reader: LineReader) -> bool:
    """True if the lines are plain text, and there is a kernel."""
    return IS_COMPILED and reader.format is InputFormat.LINES


class LineColumns:
    """Keys and values of a block of lines, the first of which has the number `first_line`."""

    def __init__(
        self, lines: Sequence[bytes], reader: LineReader, first_line: int, now_ms: TimestampMs
    ) -> None:
        self.first_line = first_line
        self.now_ms = now_ms
        self.bad_line: str | None = None  # why the lines end before the given ones do
        self.has_keys = reader.key_separator is not None
        self._partition = reader.partition
        self._key = reader.key
        headers = bytearray()
        if reader.headers:
            write_headers(headers, reader.headers)
        self.headers = bytes(headers)
        keys: Sequence[bytes] = ()
        values = lines
        if reader.key_separator is not None:
            keys, values = self._split(lines, reader.key_separator)
        self.count = len(values)
        self.values = b"".join(values)
        self.keys = b"".join(keys) if self.has_keys else self._key or b""
        value_sizes = array("q", map(len, values))
        key_sizes = self._repeated(-1 if self._key is None else len(self._key))
        key_ats = self._repeated(0)
        if self.has_keys:
            key_sizes = array("q", map(len, keys))
            key_ats = _starts(key_sizes)
        self.key_ats, self.key_sizes = key_ats, key_sizes
        self.table = array("q")
        for column in (
            key_ats,
            key_sizes,
            _starts(value_sizes),
            value_sizes,
            self._repeated(0),
            self._repeated(len(self.headers)),
        ):
            self.table += column
        fixed_bytes = _OVERHEAD_BYTES_MAX + len(self.headers)
        if not self.has_keys:
            fixed_bytes += len(self.keys)
            self.sizes_bytes = array("q", [size + fixed_bytes for size in value_sizes])
        else:
            self.sizes_bytes = array(
                "q",
                [
                    key + value + fixed_bytes
                    for key, value in zip(key_sizes, value_sizes, strict=True)
                ],
            )

    def by_partition(self, partitioner: Partitioner) -> dict[int, Outgoing]:
        """The lines by the partition that they go to, in their order."""
        if not self.count:
            return {}
        if self._partition is not None or not self.has_keys:
            index = self._partition
            if index is None:
                index = partitioner.choose(self._key)
            return {index: ColumnLines(self, array("q", range(self.count)))}
        hashes = array("I", bytes(4 * self.count))
        kernel.hash_keys(self.keys, self.key_ats, self.key_sizes, hashes)
        rows: dict[int, list[int]] = {}
        count = partitioner.partition_count
        for row, value in enumerate(hashes):
            rows.setdefault((value & _POSITIVE) % count, []).append(row)
        return {index: ColumnLines(self, array("q", some)) for index, some in rows.items()}

    def _split(
        self, lines: Sequence[bytes], separator: bytes
    ) -> tuple[Sequence[bytes], Sequence[bytes]]:
        parts = [line.partition(separator) for line in lines]
        for number, (_, found, _) in enumerate(parts):
            if not found:
                self.bad_line = f"line {self.first_line + number}: {no_separator(separator)}"
                del parts[number:]
                break
        return [key for key, _, _ in parts], [value for _, _, value in parts]

    def _repeated(self, number: int) -> "Numbers[int]":
        return array("q", [number]) * self.count


class ColumnLines:
    """Some lines of a block, for one partition."""

    def __init__(self, columns: LineColumns, rows: "Numbers[int]") -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def lines(self) -> list[int]:
        first_line = self._columns.first_line
        return [first_line + row for row in self._rows]

    def sizes_bytes(self) -> "Sequence[int]":
        sizes = self._columns.sizes_bytes
        if len(self._rows) == len(sizes):
            return sizes
        return [sizes[row] for row in self._rows]

    def part(self, first: int, last: int) -> "ColumnLines":
        return ColumnLines(self._columns, self._rows[first:last])

    def pack(self) -> Packed:
        columns = self._columns
        payload = bytearray(sum(self.sizes_bytes()))
        size_bytes = kernel.pack_records(
            columns.keys,
            columns.values,
            columns.headers,
            columns.table,
            columns.count,
            self._rows,
            payload,
        )
        del payload[size_bytes:]
        return Packed(
            payload=payload,
            record_count=len(self._rows),
            base_timestamp_ms=columns.now_ms,
            max_timestamp_ms=columns.now_ms,
        )


def _starts(sizes: "Numbers[int]") -> "Numbers[int]":
    """Where pieces of these sizes begin, one behind the other."""
    starts = array("q", accumulate(sizes, initial=0))
    starts.pop()
    return starts
