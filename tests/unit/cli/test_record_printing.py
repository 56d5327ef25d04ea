"""Text of fetched batches, in the pieces in which it is written."""

from collections.abc import Iterator

import pytest

from ottla.cli.record_output import compile_template
from ottla.cli.record_printing import print_batches
from ottla.client.errors import Unreadable
from ottla.client.reader import FetchedBatch, ReadRange
from ottla.model import LeaderEpoch, Offset, TopicPartition
from ottla.records.batch import Record, build_batch, read_header, stamp

TP = TopicPartition("orders", 0)
LINES = compile_template("%o:%v\\n")
LARGE = b"x" * 100_000


def batch(base_offset: int, *values: bytes) -> FetchedBatch:
    data = build_batch([Record(value=value) for value in values])
    stamp(data, Offset(base_offset), LeaderEpoch(0))
    return FetchedBatch(TP, read_header(data), memoryview(data), ReadRange(Offset(0)))


def damaged(base_offset: int) -> FetchedBatch:
    whole = batch(base_offset, b"lost")
    whole.data[-1] ^= 1
    return whole


def test_small_batches_are_written_together() -> None:
    (piece,) = print_batches([batch(0, b"a", b"b"), batch(2, b"c")], LINES, None)
    assert (piece.text, piece.record_count, piece.end) == (b"0:a\n1:b\n2:c\n", 3, 3)


def test_a_large_batch_is_written_before_the_next_is_decoded() -> None:
    taken = list[int]()

    def batches() -> Iterator[FetchedBatch]:
        for offset in range(3):
            taken.append(offset)
            yield batch(offset, LARGE)

    pieces = print_batches(batches(), LINES, None)
    assert (next(pieces).end, taken) == (1, [0])
    assert (next(pieces).end, taken) == (2, [0, 1])


def test_text_before_a_damaged_batch_is_not_lost() -> None:
    pieces = print_batches([batch(0, b"a"), damaged(1)], LINES, None)
    assert next(pieces).text == b"0:a\n"
    with pytest.raises(Unreadable, match="from offset 1 on"):
        next(pieces)


@pytest.mark.parametrize(
    ("count", "text", "end"),
    [
        (1, b"0:a\n", 1),
        (2, b"0:a\n1:b\n", 2),
        (3, b"0:a\n1:b\n2:c\n", 3),
        (9, b"0:a\n1:b\n2:c\n", 3),
    ],
)
def test_a_count_ends_it_at_the_next_offset_to_read(count: int, text: bytes, end: int) -> None:
    pieces = list(print_batches([batch(0, b"a", b"b"), batch(2, b"c")], LINES, count))
    assert b"".join(piece.text for piece in pieces) == text
    assert pieces[-1].end == end


def test_what_lies_behind_a_count_is_not_decoded() -> None:
    (piece,) = print_batches([batch(0, b"a"), damaged(1)], LINES, 1)
    assert piece.record_count == 1
