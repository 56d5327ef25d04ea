"""The compiled kernel, its plain twin and `pack` make the same bytes of the same records."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.client.partitioner import murmur2
from ottla.records.batch import Record, pack

pytest.importorskip("numpy", reason="the extra `spark` is not installed")

import numpy as np

from ottla.spark import kernel_write
from ottla.spark.kernel import IS_COMPILED, kernel
from ottla.spark.kernel_read import Table
from ottla.spark.kernel_write import PackField, PackSources

PackRecords = Callable[[PackSources, Table], memoryview]

contents = st.none() | st.binary(max_size=200)
records = st.builds(
    Record,
    key=contents,
    value=contents,
    headers=st.lists(st.tuples(st.text(max_size=10), contents), max_size=3).map(tuple),
)
needs_kernel = pytest.mark.skipif(
    not IS_COMPILED, reason="the kernel is not compiled, or an older one"
)
TWINS = [
    pytest.param(kernel_write.compiled_pack_records, marks=needs_kernel),
    kernel_write.python_pack_records,
]


def header_bytes(record: Record) -> bytes:
    """The headers of a record as they lie behind its value."""
    empty = bytes(pack([Record()]).payload)
    full = bytes(pack([Record(headers=record.headers)]).payload)
    size = 1 if full[0] < 0x80 else 2
    return full[size + len(empty) - 2 :] if record.headers else b""


def parts_of(sent: list[Record], gap: bytes = b"") -> PackSources:
    """Parts in their buffers, with something between them that belongs to no record."""
    table = np.empty((len(PackField), len(sent)), np.int64)
    columns: tuple[list[bytes | None], ...] = (
        [record.key for record in sent],
        [record.value for record in sent],
        [header_bytes(record) for record in sent],
    )
    sources = []
    for number, column in enumerate(columns):
        source = bytearray(gap)
        for row, content in enumerate(column):
            table[2 * number, row] = len(source)
            table[2 * number + 1, row] = -1 if content is None else len(content)
            source += (content or b"") + gap
        sources.append(bytes(source))
    keys, values, headers = sources
    return PackSources(keys=keys, values=values, headers=headers, table=table)


@pytest.mark.parametrize("pack_records", TWINS)
@given(sent=st.lists(records, min_size=1, max_size=150), gap=st.binary(max_size=3))
def test_packed_parts_are_packed_records(
    pack_records: PackRecords, sent: list[Record], gap: bytes
) -> None:
    packed = pack_records(parts_of(sent, gap), np.arange(len(sent)))
    assert bytes(packed) == bytes(pack(sent).payload)


@pytest.mark.parametrize("pack_records", TWINS)
@given(sent=st.lists(records, min_size=1, max_size=20), data=st.data())
def test_rows_are_packed_in_the_order_they_are_asked_for(
    pack_records: PackRecords, sent: list[Record], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(sent) - 1), min_size=1, max_size=30))
    packed = pack_records(parts_of(sent), np.array(rows, np.int64))
    assert bytes(packed) == bytes(pack([sent[row] for row in rows]).payload)


@pytest.mark.parametrize("size_bytes", [62, 63, 64, 8190, 8192, 1 << 20])
@pytest.mark.parametrize("pack_records", TWINS)
def test_sizes_at_the_edges_of_numbers_are_packed(
    pack_records: PackRecords, size_bytes: int
) -> None:
    sent = [Record(key=bytes(size_bytes), value=bytes(size_bytes))] * 3
    assert bytes(pack_records(parts_of(sent), np.arange(3))) == bytes(pack(sent).payload)


@given(keys=st.lists(contents, min_size=1, max_size=30))
def test_both_hash_keys_as_clients_do(keys: list[bytes | None]) -> None:
    sources = parts_of([Record(key=key) for key in keys], b"-")
    expected = [0 if key is None else murmur2(key) for key in keys]
    assert kernel_write.python_hash_keys(sources).tolist() == expected
    if IS_COMPILED:
        assert kernel_write.compiled_hash_keys(sources).tolist() == expected


@needs_kernel
@given(
    part=st.sampled_from(list(PackField)),
    number=st.integers(-(2**62), 2**62).filter(lambda number: not -1 <= number <= 3),
    row=st.integers(-(2**40), 2**40),
)
def test_the_kernel_reads_nowhere_but_in_its_buffers(part: int, number: int, row: int) -> None:
    sources = parts_of([Record(key=b"k", value=b"v", headers=(("h", b"1"),))])
    if row:
        with pytest.raises(IndexError):
            kernel.pack_records(
                sources.keys,
                sources.values,
                sources.headers,
                sources.table,
                1,
                np.array([row]),
                bytearray(99),
            )
    if part % 2 and number < 0:
        return  # every negative size is null
    sources.table[part, 0] = number
    with pytest.raises(IndexError):
        kernel.pack_records(
            sources.keys,
            sources.values,
            sources.headers,
            sources.table,
            1,
            np.array([0]),
            bytearray(99),
        )


@needs_kernel
@given(room_bytes=st.integers(0, 12))
def test_the_kernel_writes_nowhere_but_into_its_room(room_bytes: int) -> None:
    sent = [Record(key=b"k", value=b"v")] * 2
    sources = parts_of(sent)
    size_bytes = len(pack(sent).payload)
    out = bytearray(room_bytes) + b"\xee" * 8
    with memoryview(out)[:room_bytes] as room:
        if room_bytes < size_bytes:
            with pytest.raises(IndexError):
                kernel.pack_records(
                    sources.keys, sources.values, b"", sources.table, 2, np.arange(2), room
                )
    assert out[room_bytes:] == b"\xee" * 8
