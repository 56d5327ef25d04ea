"""Another implementation of the format reads our batches, and we read its."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from ottla.model import TimestampMs
from ottla.records.batch import Record, build_batch, check_batch, records
from ottla.records.compression import Codec

LETTERS = [
    Record(
        timestamp_ms=TimestampMs(1_700_000_000_000 + number * 7),
        key=b"key%d" % number if number % 3 else None,
        value=b"value" * (number % 50) if number % 5 else None,
        headers=(("trace", b"abc"), ("empty", None)) if number % 2 else (),
    )
    for number in range(300)
]


@pytest.mark.parametrize("codec", Codec)
def test_aiokafka_reads_what_we_write(codec: Codec) -> None:
    memory = MemoryRecords(bytes(build_batch(LETTERS, codec=codec)))
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert [
        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch
    ] == [
        (number, one.timestamp_ms, one.key, one.value, one.headers)
        for number, one in enumerate(LETTERS)
    ]


@pytest.mark.parametrize("codec", Codec)
def test_we_read_what_aiokafka_writes(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for number, one in enumerate(LETTERS):
        builder.append(number, one.timestamp_ms, one.key, one.value, list(one.headers))
    batch = bytes(builder.build())
    assert check_batch(batch).codec is codec
    assert [(one.timestamp_ms, one.key, one.value, one.headers) for one in records(batch)] == [
        (one.timestamp_ms, one.key, one.value, one.headers) for one in LETTERS
    ]
