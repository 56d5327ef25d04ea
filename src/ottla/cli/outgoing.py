"""Records that `produce` sends to one partition, each with the line it came from."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, Self

from ottla.client.partitioner import Partitioner
from ottla.records.batch import Packed, Record, pack

BATCH_BYTES_MAX: Final = 512 << 10  # before compression; below every broker's default limit
_RECORD_OVERHEAD_BYTES: Final = 24


class Outgoing(Protocol):
    """Records in order; lines are counted from 1."""

    def __len__(self) -> int: ...
    def lines(self) -> Sequence[int]: ...
    def sizes_bytes(self) -> Sequence[int]: ...
    def part(self, first: int, last: int) -> "Outgoing": ...
    def pack(self) -> Packed: ...


class NumberedRecord(NamedTuple):
    """A record with the line it came from."""

    line: int
    record: Record


class RecordLines:
    """Records that were read one by one."""

    def __init__(self, numbered: Sequence[NumberedRecord]) -> None:
        self._numbered = numbered

    def __len__(self) -> int:
        return len(self._numbered)

    def lines(self) -> list[int]:
        return [one.line for one in self._numbered]

    def sizes_bytes(self) -> list[int]:
        return [_size_bytes(one.record) for one in self._numbered]

    def part(self, first: int, last: int) -> Self:
        return type(self)(self._numbered[first:last])

    def pack(self) -> Packed:
        return pack([one.record for one in self._numbered])


def by_partition(
    records: Iterable[tuple[NumberedRecord, int | None]], partitioner: Partitioner
) -> dict[int, Outgoing]:
    """Records by the partition they go to: the given one, or that of their key."""
    chosen = dict[int, list[NumberedRecord]]()
    for numbered, wanted in records:
        index = partitioner.choose(numbered.record.key) if wanted is None else wanted
        chosen.setdefault(index, []).append(numbered)
    return {index: RecordLines(numbered) for index, numbered in chosen.items()}


def split(outgoing: Outgoing) -> list[Outgoing]:
    """Batches of at most `BATCH_BYTES_MAX`; a larger record is a batch alone."""
    ends = list(accumulate(outgoing.sizes_bytes()))
    batches = list[Outgoing]()
    first, sent_bytes = 0, 0
    while first < len(ends):
        last = max(bisect_right(ends, sent_bytes + BATCH_BYTES_MAX, first), first + 1)
        batches.append(outgoing.part(first, last))
        first, sent_bytes = last, ends[last - 1]
    return batches


def _size_bytes(record: Record) -> int:
    size_bytes = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size_bytes += 2 * len(name) + len(content or b"") + 4
    return size_bytes
