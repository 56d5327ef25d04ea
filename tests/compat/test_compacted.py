"""Logs of which compaction has left little: consumers read over batches without records."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat.adapter import PATIENCE_S, wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import create_topic, fetch, produce
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, Sequence
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.records.batch import Record, batches, build_batch

PRODUCERS = 400  # each leaves a batch without records: 16 of them fill a segment
TOPIC = "emptied"
LAST = b"last" + bytes(1000)  # fills a segment


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker with a topic that is nothing but such batches, and one record at its end."""
    directory: Path = tmp_path_factory.mktemp("compacted")
    settings = {"log.cleaner.backoff.ms": "50", "log.flush.offset.checkpoint.interval.ms": "100"}
    broker = ServedBroker(directory / "data", settings)
    broker.start()
    try:
        with connected(broker.address) as raw:
            empty(raw)
        yield broker
    finally:
        broker.stop()


def empty(raw: RawConnection) -> None:
    create_topic(
        raw,
        TOPIC,
        cleanup_policy="compact",
        segment_bytes=1024,
        min_cleanable_dirty_ratio=0,
        durability="replicated",
    )
    for _ in range(PRODUCERS):
        write(raw, b"x")
    write(raw, LAST)
    write(raw, b"x", key=b"another")  # in the next segment: the active one is not compacted
    wait_until(lambda: not has_records(raw), "the log is compacted")


def write(raw: RawConnection, value: bytes, key: bytes = b"k") -> None:
    """One record of a new idempotent producer: its last batch stays, to know its sequence."""
    given = raw.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert given.error_code == ErrorCode.NONE
    batch = build_batch(
        [Record(key=key, value=value)],
        producer_id=ProducerId(given.producer_id),
        producer_epoch=ProducerEpoch(0),
        base_sequence=Sequence(0),
    )
    assert produce(raw, TOPIC, bytes(batch)).error_code == ErrorCode.NONE


def has_records(raw: RawConnection) -> bool:
    """True if any of the batches before the last has a record."""
    offset = 0
    while offset < PRODUCERS:
        data = fetch(raw, TOPIC, offset=offset).records or b""
        for header, _ in batches(data):
            if header.record_count and header.base_offset < PRODUCERS:
                return True
            offset = header.last_offset + 1
    return False


def test_librdkafka_reads_over_segments_without_records(served: ServedBroker) -> None:
    """Ten responses in a row without a record are an error to it."""
    consumer = Consumer(
        {"bootstrap.servers": served.address, "group.id": "any", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        assert (message.offset(), message.value()) == (PRODUCERS, LAST)
    finally:
        consumer.close()
