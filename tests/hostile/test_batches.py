"""Record batches that lie: about their bytes, their records, their sender, or their size."""

import gzip
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from fakes import build
from hostile.attacked_broker import MIB, AttackedBroker
from hostile.wire import (
    RawClient,
    create_topic,
    fetch_request,
    produce_request,
    raw_client,
)
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.records.batch import HEADER_BYTES
from ottla.records.compression import Codec

PRODUCE_VERSION = 8
NO_SEARCH_LASTS_S = 2.0


def patched(batch: bytearray, layout: str, at: int, *values: Any, crc: bool = True) -> bytes:
    """A batch with a field overwritten; its CRC is made true again unless that is the lie."""
    struct.pack_into(layout, batch, at, *values)
    if crc:
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def produce(client: RawClient, tp: TopicPartition, batch: bytes | None) -> Any:
    answer = client.ask(produce_request(tp, batch), PRODUCE_VERSION)
    return answer.responses[0].partition_responses[0]


def end_offset(client: RawClient, tp: TopicPartition) -> int:
    answer = client.ask(fetch_request(tp, 0), 11)
    return int(answer.responses[0].partitions[0].high_watermark)


CORRUPT = {ErrorCode.CORRUPT_MESSAGE}
INVALID = {ErrorCode.INVALID_RECORD}
EITHER = CORRUPT | INVALID
LIES: dict[str, tuple[Callable[[], bytes | None], set[ErrorCode]]] = {
    "no batch at all": (lambda: None, INVALID),
    "an empty batch": (lambda: b"", INVALID),
    "half a header": (lambda: bytes(build.batch())[:30], INVALID),
    "a wrong CRC": (lambda: patched(build.batch(), ">I", 17, 1, crc=False), CORRUPT),
    "a flipped byte": (lambda: patched(build.batch(), ">b", 65, 77, crc=False), CORRUPT),
    "a length too long": (lambda: patched(build.batch(), ">i", 8, 10_000), CORRUPT),
    "a length too short": (lambda: patched(build.batch(), ">i", 8, 40), EITHER),
    "a negative length": (lambda: patched(build.batch(), ">i", 8, -1), CORRUPT),
    "two batches": (lambda: bytes(build.batch() + build.batch()), INVALID),
    "a cut batch": (lambda: bytes(build.batch(3))[:-1], CORRUPT),
    "more records than offsets": (lambda: patched(build.batch(3), ">i", 57, 4), INVALID),
    "no records": (lambda: patched(build.batch(), ">i", 57, 0), INVALID),
    "a negative record count": (lambda: patched(build.batch(), ">i", 57, -1), INVALID),
    "more offsets than records": (lambda: patched(build.batch(3), ">i", 23, 9), INVALID),
    "a negative offset delta": (lambda: patched(build.batch(), ">i", 23, -2), INVALID),
    "a producer id without a sequence": (
        lambda: patched(build.batch(), ">qhi", 43, 5, 0, -1),
        INVALID,
    ),
    "a producer id without an epoch": (
        lambda: patched(build.batch(), ">qhi", 43, 5, -1, 0),
        INVALID,
    ),
    "a control batch": (lambda: patched(build.batch(), ">h", 21, 0x20), INVALID),
    "magic 3": (lambda: patched(build.batch(), ">b", 16, 3), EITHER),
    "magic 1": (lambda: patched(build.batch(), ">b", 16, 1), EITHER),
    "magic 0": (lambda: patched(build.batch(), ">b", 16, 0), EITHER),
    "magic -1": (lambda: patched(build.batch(), ">b", 16, -1), EITHER),
    "an unknown codec": (
        lambda: patched(build.batch(), ">h", 21, 7),
        {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE},
    ),
    "a transaction nobody began": (
        lambda: patched(build.batch(), ">h", 21, 0x10),
        {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_RECORD},
    ),
    "a timestamp in the year 9999": (
        lambda: bytes(build.batch(timestamp_ms=253_370_764_800_000)),
        {ErrorCode.INVALID_TIMESTAMP},
    ),
    "a batch larger than the topic allows": (
        lambda: bytes(build.batch(value=bytes(2 * MIB))),
        {ErrorCode.MESSAGE_TOO_LARGE},
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_is_refused_and_nothing_is_appended(
    broker: AttackedBroker, lie: str
) -> None:
    tp = TopicPartition("lies", 0)
    create_topic(broker, tp.topic)
    make, expected = LIES[lie]
    with raw_client(broker) as client:
        before = end_offset(client, tp)
        answer = produce(client, tp, make())
        assert ErrorCode(answer.error_code) in expected
        assert answer.base_offset == -1
        assert end_offset(client, tp) == before
        assert produce(client, tp, bytes(build.batch())).base_offset == before


def test_acks_that_do_not_exist_are_refused(broker: AttackedBroker) -> None:
    tp = TopicPartition("lies", 0)
    create_topic(broker, tp.topic)
    with raw_client(broker) as client:
        for acks in (2, -2, 2**15 - 1, -(2**15)):
            answer = client.ask(produce_request(tp, bytes(build.batch()), acks), PRODUCE_VERSION)
            (partition,) = answer.responses[0].partition_responses
            assert partition.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_produce_without_acknowledgement_that_fails_closes_the_connection(
    broker: AttackedBroker,
) -> None:
    with raw_client(broker) as client:
        request = produce_request(TopicPartition("not-there", 0), bytes(build.batch()), acks=0)
        client.send_request(request, PRODUCE_VERSION)
        assert client.is_closed_by_broker


def test_producers_are_fenced_by_epoch_and_held_to_their_sequence(broker: AttackedBroker) -> None:
    tp = TopicPartition("sequences", 0)
    create_topic(broker, tp.topic)

    def batch(epoch: int, sequence: int, count: int = 2) -> bytes:
        return bytes(
            build.batch(count, producer_id=77, producer_epoch=epoch, base_sequence=sequence)
        )

    with raw_client(broker) as client:
        first = produce(client, tp, batch(epoch=3, sequence=0))
        assert first.error_code == ErrorCode.NONE
        repeated = produce(client, tp, batch(epoch=3, sequence=0))
        assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, first.base_offset)
        end = end_offset(client, tp)
        for wrong, code in (
            (batch(epoch=3, sequence=5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(epoch=3, sequence=2**31 - 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(epoch=4, sequence=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (batch(epoch=2, sequence=2), ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            assert produce(client, tp, wrong).error_code == code
        assert end_offset(client, tp) == end
        assert produce(client, tp, batch(epoch=3, sequence=2)).base_offset == end
        assert produce(client, tp, batch(epoch=4, sequence=0)).error_code == ErrorCode.NONE


BOMB_BYTES = 64 * MIB
SNAPPY_HEADER = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


@cache
def gzip_of_zeros() -> bytes:
    return gzip.compress(bytes(BOMB_BYTES))


def snappy_block() -> bytes:
    zeros = bytes(cramjam.snappy.compress_raw(bytes(4 * MIB)))
    return struct.pack(">i", len(zeros)) + zeros


# Made when they are used: every worker imports this, and only one throws a bomb.
BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "zstd": (Codec.ZSTD, lambda: bytes(cramjam.zstd.compress(bytes(BOMB_BYTES)))),
    "gzip": (Codec.GZIP, gzip_of_zeros),
    "gzip in gzip": (Codec.GZIP, lambda: gzip.compress(gzip_of_zeros() * 20)),
    "lz4": (Codec.LZ4, lambda: bytes(cramjam.lz4.compress(bytes(BOMB_BYTES)))),
    "lz4 with a wrong frame": (
        Codec.LZ4,
        lambda: bytes.fromhex("04224d18604082") + b"\xff" * 400,
    ),
    "snappy of 4 GiB": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "snappy in blocks": (Codec.SNAPPY, lambda: SNAPPY_HEADER + snappy_block() * 5),
    "not compressed at all": (Codec.ZSTD, lambda: b"certainly not"),
    "nothing": (Codec.GZIP, bytes),
}


def bomb_batch(codec: Codec, payload: bytes, count: int = 1) -> bytes:
    """An intact envelope around a payload that no producer would make."""
    batch = bytearray(bytes(build.batch())[:HEADER_BYTES]) + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return patched(batch, ">h", 21, codec)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_that_is_searched_by_time_goes_off_in_a_small_room(
    broker: AttackedBroker, kind: str
) -> None:
    """Stored as it came; opened when somebody looks for a timestamp."""
    tp = TopicPartition(f"bomb-{list(BOMBS).index(kind)}", 0)
    create_topic(broker, tp.topic)
    codec, make_payload = BOMBS[kind]
    bomb = bomb_batch(codec, make_payload())
    with raw_client(broker) as client, broker.memory_grows_less_than(32 * MIB):
        stored = produce(client, tp, bomb)
        if stored.error_code == ErrorCode.NONE:
            for timestamp in (build.NOW_MS, -3):
                answer = search(client, tp, timestamp)
                assert ErrorCode(answer.error_code) in {
                    ErrorCode.MESSAGE_TOO_LARGE,
                    ErrorCode.INVALID_RECORD,
                }
        assert produce(client, tp, bytes(build.batch())).error_code == ErrorCode.NONE


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_that_must_be_recompressed_is_refused(broker: AttackedBroker, kind: str) -> None:
    codec, make_payload = BOMBS[kind]
    bomb = bomb_batch(codec, make_payload())
    target = "uncompressed" if codec is Codec.LZ4 else "lz4"
    tp = TopicPartition(f"recompressed-{target}", 0)
    create_topic(broker, tp.topic, compression_type=target)
    with raw_client(broker) as client, broker.memory_grows_less_than(32 * MIB):
        before = end_offset(client, tp)
        answer = produce(client, tp, bomb)
        if kind == "gzip in gzip":  # the outer one is small, and nobody opens the inner one
            return
        assert ErrorCode(answer.error_code) in {
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.INVALID_RECORD,
        }
        assert end_offset(client, tp) == before
        assert produce(client, tp, bytes(build.batch(3))).base_offset == before


def search(client: RawClient, tp: TopicPartition, timestamp: int) -> Any:
    wanted = ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
    topic = ListOffsetsTopic(name=tp.topic, partitions=[wanted])
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)
    return answer.topics[0].partitions[0]


def test_a_search_through_batches_that_lie_about_their_time_ends_soon(
    broker: AttackedBroker,
) -> None:
    """Each holds millions of records of which none is as young as its envelope says."""
    tp = TopicPartition("lying-times", 0)
    create_topic(broker, tp.topic)
    record = b"\x0c\0\0\0\x01\x01\0"  # length 6, no deltas, null key, null value, no headers
    count = 2_000_000
    payload = bytes(cramjam.zstd.compress(record * count))
    batch = bytearray(bomb_batch(Codec.ZSTD, payload, count))
    liar = patched(batch, ">q", 35, build.NOW_MS + 60_000)
    with raw_client(broker) as client:
        for _ in range(5):
            assert produce(client, tp, liar).error_code == ErrorCode.NONE
        started_s = time.perf_counter()
        search(client, tp, build.NOW_MS + 30_000)
        assert time.perf_counter() - started_s < NO_SEARCH_LASTS_S
