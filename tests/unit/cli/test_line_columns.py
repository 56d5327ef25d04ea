"""Lines packed in columns become the records that they become one by one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.line_columns import LineColumns, can_read
from ottla.cli.outgoing import NumberedRecord, Outgoing, by_partition, split
from ottla.cli.record_input import InputFormat, LineReader
from ottla.client.partitioner import Partitioner
from ottla.errors import UsageRefused
from ottla.model import TimestampMs
from ottla.records.batch import Record, seal

NOW_MS = TimestampMs(1_700_000_000_000)
FIRST_LINE = 5

texts = st.binary(max_size=12).filter(lambda text: b"\n" not in text)
readers = st.builds(
    LineReader,
    key=st.none() | texts,
    headers=st.lists(st.tuples(st.text(max_size=4), st.none() | texts), max_size=2).map(tuple),
    partition=st.none() | st.just(1),
) | st.builds(
    LineReader,
    key_separator=st.just(b":"),
    headers=st.just((("source", b"shop"),)),
    partition=st.none() | st.just(1),
)


def one_by_one(lines: list[bytes], reader: LineReader) -> tuple[dict[int, Outgoing], str | None]:
    records = list[tuple[NumberedRecord, int | None]]()
    problem = None
    for number, line in enumerate(lines, FIRST_LINE):
        try:
            read = reader.read(line)
        except UsageRefused as refused:
            problem = f"line {number}: {refused}"
            break
        record = Record(timestamp_ms=NOW_MS, key=read.key, value=read.value, headers=read.headers)
        records.append((NumberedRecord(number, record), read.partition))
    return by_partition(records, partitioner()), problem


def partitioner() -> Partitioner:
    return Partitioner(3, Random(1))


def content(outgoing: dict[int, Outgoing]) -> dict[int, list[tuple[list[int], bytes]]]:
    return {
        index: [(list(batch.lines()), bytes(seal(batch.pack()))) for batch in split(some)]
        for index, some in outgoing.items()
    }


@given(st.lists(texts, max_size=8), readers)
def test_columns_are_the_same_records_for_the_same_partitions(
    lines: list[bytes], reader: LineReader
) -> None:
    columns = LineColumns(lines, reader, FIRST_LINE, NOW_MS)
    expected, problem = one_by_one(lines, reader)
    assert content(columns.by_partition(partitioner())) == content(expected)
    assert columns.bad_line == problem


@given(st.lists(texts.map(lambda text: text + b":v"), min_size=3, max_size=8))
def test_a_part_has_its_own_lines_and_no_others(lines: list[bytes]) -> None:
    reader = LineReader(key_separator=b":")
    columns = LineColumns(lines, reader, FIRST_LINE, NOW_MS)
    expected, _ = one_by_one(lines, reader)
    for index, some in columns.by_partition(partitioner()).items():
        half = len(some) // 2
        for first, last in ((0, half), (half, len(some))):
            if last > first:
                found, wanted = some.part(first, last), expected[index].part(first, last)
                assert found.lines() == wanted.lines()
                assert bytes(found.pack().payload) == bytes(wanted.pack().payload)


def test_a_large_block_is_several_batches() -> None:
    lines = [b"x" * 100_000] * 12
    columns = LineColumns(lines, LineReader(), FIRST_LINE, NOW_MS)
    (outgoing,) = columns.by_partition(partitioner()).values()
    assert [len(batch) for batch in split(outgoing)] == [5, 5, 2]


@pytest.mark.parametrize("name", [InputFormat.JSON, InputFormat.HEX])
def test_other_formats_are_read_line_by_line(name: InputFormat) -> None:
    assert can_read(LineReader())
    assert not can_read(LineReader(format=name))
