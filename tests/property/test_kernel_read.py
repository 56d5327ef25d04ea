"""The compiled kernel and its Python fallback find the same fields, or refuse the same bytes."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.errors import InvalidRecord
from ottla.model import Offset, TimestampMs
from ottla.records.batch import HEADER_BYTES, Record, build_batch

pytest.importorskip("numpy", reason="the extra `spark` is not installed")

from ottla.spark import kernel_read
from ottla.spark.kernel import IS_COMPILED, Field

FindFields = Callable[[bytes, int, int, int, kernel_read.Table, int], None]

records = st.builds(
    Record,
    timestamp_ms=st.integers(0, 2**42).map(TimestampMs),
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4
    ).map(tuple),
)
needs_kernel = pytest.mark.skipif(
    not IS_COMPILED,
    reason="the kernel is not compiled: python setup.py build_ext --inplace",
)


def found_by(
    find: FindFields, source: bytes, count: int, start: int = 0, column: int = 0
) -> list[list[int]] | None:
    """The table that `find` fills, or None when it refuses."""
    table = kernel_read.table_of(Field, count + column)
    table[:] = -7
    try:
        find(source, start, len(source), count, table, column)
    except InvalidRecord:
        return None
    found: list[list[int]] = table.tolist()
    return found


def agree(source: bytes, count: int, start: int = 0) -> bool:
    """True if both found fields; their results must be equal."""
    compiled = found_by(kernel_read.compiled_find_fields, source, count, start, column=2)
    assert compiled == found_by(kernel_read.python_find_fields, source, count, start, column=2)
    return compiled is not None


@needs_kernel
@given(st.lists(records, min_size=1, max_size=20), st.integers(0, 10))
def test_both_find_the_same_records_wherever_they_begin(sent: list[Record], before: int) -> None:
    payload = bytes(build_batch(sent)[HEADER_BYTES:])
    assert agree(bytes(before) + payload, len(sent), before)


@needs_kernel
@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_both_refuse_the_same_damage(sent: list[Record], data: st.DataObject) -> None:
    payload = bytearray(build_batch(sent)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    agree(bytes(payload[:cut]), len(sent))
    agree(bytes(payload), len(sent))


@needs_kernel
@given(st.binary(max_size=60), st.integers(0, 6))
def test_both_say_the_same_of_any_bytes(payload: bytes, count: int) -> None:
    agree(payload, count)


@needs_kernel
@given(st.lists(records, min_size=1, max_size=20))
def test_both_find_the_same_headers(sent: list[Record]) -> None:
    payload = bytes(build_batch(sent)[HEADER_BYTES:])
    table = kernel_read.table_of(Field, len(sent))
    kernel_read.python_find_fields(payload, 0, len(payload), len(sent), table, 0)
    ats, counts = table[Field.HEADERS_AT], table[Field.HEADER_COUNT]
    plain = kernel_read.python_find_headers(payload, ats, counts)
    assert kernel_read.compiled_find_headers(payload, ats, counts).tolist() == plain.tolist()
    assert plain.shape[1] == sum(len(record.headers) for record in sent)


@needs_kernel
@given(
    st.sampled_from(["source", "start", "count", "column"]),
    st.integers(-(2**40), 2**40).filter(lambda number: not 0 <= number <= 3),
)
def test_the_kernel_writes_nowhere_but_into_its_table(what: str, number: int) -> None:
    payload = bytes(build_batch([Record(offset=Offset(0))] * 3)[HEADER_BYTES:])
    start = number if what == "start" else 0
    end = number if what == "source" else len(payload)
    count = number if what == "count" else 3
    column = number if what == "column" else 0
    table = kernel_read.table_of(Field, 3)
    if what in {"start", "source"} and 0 <= number <= len(payload):
        return
    with pytest.raises(IndexError):
        kernel_read.compiled_find_fields(payload, start, end, count, table, column)
