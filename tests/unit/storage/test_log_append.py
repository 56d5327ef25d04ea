"""Appending: what is refused, what is changed, and what leaves no trace."""

import errno
from dataclasses import replace
from random import Random

import pytest

from fakes import build
from fakes.logs import append, offsets_of, state_of
from fakes.memory_files import MemoryFiles
from ottla.config import TimestampType, TopicConfig
from ottla.errors import (
    ApiError,
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OutOfOrderSequence,
    StorageFailed,
)
from ottla.model import (
    Offset,
    ProducerEpoch,
    ProducerId,
)
from ottla.records.batch import (
    Marker,
    MarkerKind,
    Record,
    batches,
    build_batch,
    build_marker,
    records,
)
from ottla.records.compression import Codec


def refused_batches() -> list[tuple[bytearray, type[ApiError]]]:
    damaged = build.batch()
    damaged[-1] ^= 1
    marker = build_marker(
        Marker(MarkerKind.COMMIT, 0),
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        timestamp_ms=build.NOW_MS,
    )
    return [
        (damaged, CorruptBatch),
        (marker, InvalidRecord),
        (build.batch(value=bytes(2000)), MessageTooLarge),
        (build.batch(timestamp_ms=build.NOW_MS + 3_600_001), InvalidTimestamp),
        (build.batch(timestamp_ms=build.NOW_MS - 10_001), InvalidTimestamp),
        (build.batch(producer_id=1, producer_epoch=0, base_sequence=9), OutOfOrderSequence),
        (build.batch(producer_id=2, producer_epoch=0, base_sequence=0), InvalidProducerEpoch),
    ]


@pytest.mark.parametrize(("batch", "refusal"), refused_batches())
def test_a_refused_batch_leaves_no_trace(
    files: MemoryFiles, batch: bytearray, refusal: type[ApiError]
) -> None:
    config = TopicConfig(max_message_bytes=1000, timestamp_before_max_ms=10_000)
    log = build.log(files, config)
    append(log, build.batch(producer_id=1, producer_epoch=0, base_sequence=0))
    append(log, build.batch(producer_id=2, producer_epoch=1, base_sequence=0))
    before, bytes_before = state_of(log), files.read_whole(log.directory / f"{0:020d}.log")
    with pytest.raises(refusal):
        append(log, batch)
    assert state_of(log) == before
    assert files.read_whole(log.directory / f"{0:020d}.log") == bytes_before


def test_batches_without_a_timestamp_are_not_too_old(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(timestamp_before_max_ms=10))
    append(log, build.batch(timestamp_ms=-1))


def test_a_repeated_batch_keeps_its_first_place(files: MemoryFiles) -> None:
    log = build.log(files)
    build.append(log, 5)
    first = append(log, build.batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    size_bytes = log.size_bytes
    again = append(log, build.batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    assert again == first._replace(is_duplicate=True)
    assert (log.end_offset, log.size_bytes) == (7, size_bytes)


def test_the_broker_can_give_records_their_time(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    batch = build.batch(2, timestamp_ms=5)
    assert append(log, batch).append_time_ms == build.NOW_MS
    assert [record.timestamp_ms for record in records(batch)] == [build.NOW_MS] * 2
    assert log.times.first_since(build.NOW_MS) == (0, build.NOW_MS, build.EPOCH)


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_have_one_codec_for_everybody(files: MemoryFiles, name: str) -> None:
    log = build.log(files, TopicConfig(compression_type=name))
    append(log, build.batch(3, codec=Codec.GZIP))
    append(log, build.batch(2))
    found = log.read(Offset(0), log.end_offset, 10_000, at_least_one=True)
    assert found is not None
    data = log.read_bytes(found)
    assert [header.codec for header, _ in batches(data)] == [Codec.named(name)] * 2
    assert offsets_of(log, data) == [0, 1, 2, 3, 4]


WORDS = [b"%x" % Random(number).getrandbits(40) for number in range(200)]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (TopicConfig(compression_gzip_level=1), TopicConfig(compression_gzip_level=9)),
        (TopicConfig(compression_zstd_level=-50), TopicConfig(compression_zstd_level=19)),
    ],
)
def test_a_topic_has_a_level_of_compression(low: TopicConfig, high: TopicConfig) -> None:
    name = "gzip" if low.compression_gzip_level > 0 else "zstd"
    sizes = []
    for config in (low, TopicConfig(), high):
        log = build.log(MemoryFiles(), replace(config, compression_type=name))
        value = b" ".join(Random(1).choices(WORDS, k=5000))
        append(log, build_batch([Record(value=value)]))
        sizes.append(log.size_bytes)
    assert sizes[0] > sizes[1] >= sizes[2]
    assert sizes[0] > sizes[2]


def test_a_topic_that_asks_for_something_leaves_the_short_way(files: MemoryFiles) -> None:
    log = build.log(files)
    assert build.append(log) == 0
    assert log.is_plain
    assert build.append(log) == 1
    log.config = replace(log.config, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecord):  # it has no key
        build.append(log)
    assert not log.is_plain


def test_a_compacted_topic_believes_the_keys_of_who_builds_its_batches(files: MemoryFiles) -> None:
    log = build.log(files, TopicConfig(cleanup_policy=("compact",)))
    first, second = build.batch(key=b"a"), build.batch(2, key=b"b")
    log.append_as_leader(first, build.EPOCH, build.NOW_MS, has_keys=True)
    log.append_as_leader(second, build.EPOCH, build.NOW_MS, has_keys=True)
    assert log.end_offset == 3
    assert not log.is_plain
    with pytest.raises(InvalidRecord):
        build.append(log)  # a producer's, without a key


@pytest.mark.parametrize(("number", "offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_plain_batch_that_cannot_be_written_leaves_no_trace(
    files: MemoryFiles, number: int, offline: bool
) -> None:
    log = build.log(files)
    build.append(log)
    before = state_of(log)
    files.fail_next("append", number, after_bytes=10)
    with pytest.raises(StorageFailed):
        build.append(log)
    assert state_of(log) == before
    assert (log.offline_reason is not None) == offline
    file = files.read_whole(build.DIRECTORY / "00000000000000000000.log")
    assert len(file) == log.size_bytes
