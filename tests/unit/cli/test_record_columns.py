"""Records as columns: the kernel and Python decode the same, whatever is asked of a batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli import record_columns
from ottla.cli.record_columns import DecodedRecords, FoundRecords, RecordColumns, decode_columns
from ottla.client.errors import Unreadable
from ottla.client.reader import FetchedBatch, ReadRange
from ottla.model import LeaderEpoch, Offset, TimestampMs, TopicPartition
from ottla.records.batch import Record, build_batch, read_header, stamp
from ottla.records.compression import Codec
from sizes import examples

TP = TopicPartition("orders", 0)
BASE = 100
CONTENT = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 2**40).map(TimestampMs),
        key=CONTENT,
        value=CONTENT,
        headers=st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def fetched(
    records: list[Record], codec: Codec, start: int = 0, end: int | None = None
) -> FetchedBatch:
    data = build_batch(records, codec=codec)
    stamp(data, Offset(BASE), LeaderEpoch(0))
    part = ReadRange(Offset(start), None if end is None else Offset(end))
    return FetchedBatch(TP, read_header(data), memoryview(data), part)


def content(columns: RecordColumns) -> list[object]:
    return [
        len(columns),
        columns.offsets(),
        columns.timestamps_ms(),
        columns.record_keys(),
        columns.record_values(),
        columns.record_headers(),
    ]


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(RECORDS, st.sampled_from(Codec), st.integers(90, 130), st.none() | st.integers(90, 130))
def test_the_kernel_finds_what_python_decodes(
    records: list[Record], codec: Codec, start: int, end: int | None
) -> None:
    batch = fetched(records, codec, start, end)
    found, decoded = decode_columns(batch), DecodedRecords(batch.records())
    assert isinstance(found, FoundRecords)
    assert content(found) == content(decoded)
    for index in range(len(decoded)):
        assert content(found.part(index, index + 1)) == content(decoded.part(index, index + 1))


def test_without_the_kernel_the_same_is_decoded_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "IS_COMPILED", False)
    batch = fetched([Record(value=b"a"), Record(value=b"b")], Codec.NONE, start=101)
    columns = decode_columns(batch)
    assert isinstance(columns, DecodedRecords)
    assert (columns.offsets(), columns.record_values()) == ([101], [b"b"])


def test_a_damaged_batch_is_named_by_its_partition_and_offset() -> None:
    batch = fetched([Record(value=b"whole")], Codec.NONE)
    batch.data[-3] ^= 1
    with pytest.raises(Unreadable, match=r"orders-0 from offset 100 on: .*CRC"):
        decode_columns(batch)
