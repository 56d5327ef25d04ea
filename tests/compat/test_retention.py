"""What retention and DeleteRecords take away is gone for clients, and nothing else is."""

from compat.adapter import Client, MakeTopic, Sent, wait_until
from compat.raw import RawConnection
from compat.served import ServedBroker
from compat.wire import batch, fetch, list_offset, produce
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.records.batch import Record, build_batch

EARLIEST, LATEST = -2, -1


def start_offset(raw: RawConnection, topic: str) -> int:
    return list_offset(raw, topic, EARLIEST).offset


def test_old_records_go_and_the_young_stay(
    client: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(retention_ms=600_000, segment_bytes=1024)
    now_ms = SystemClock().now_ms()
    for age_ms in (900_000, 900_000, 0, 0):
        record = Record(value=b"v" * 900, timestamp_ms=TimestampMs(now_ms - age_ms))
        produce(raw, topic, bytes(build_batch([record])))
    wait_until(lambda: start_offset(raw, topic) == 2, "the two old segments have gone")
    assert [one.offset for one in client.consume(topic, 2)] == [2, 3]
    assert fetch(raw, topic, offset=0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    with client.consumer(topic, {0: 0}, reset="earliest") as consumer:
        assert [one.offset for one in consumer.take(2)] == [2, 3]


def test_a_log_that_is_too_large_loses_its_oldest_segments(
    raw: RawConnection, make_topic: MakeTopic, broker: ServedBroker
) -> None:
    topic = make_topic(retention_bytes=5000, segment_bytes=1024)
    for _ in range(20):
        produce(raw, topic, batch(b"v" * 900))
    wait_until(lambda: start_offset(raw, topic) > 0, "old segments go")
    wait_until(
        lambda: broker.metric("ottla_log_size_bytes", partition="0", topic=topic) < 6200,
        "the log is small again",
    )
    assert list_offset(raw, topic, LATEST).offset == 20
    first = start_offset(raw, topic)
    assert fetch(raw, topic, offset=first).error_code == 0
    assert fetch(raw, topic, offset=first).log_start_offset == first


def test_even_the_newest_records_go_when_their_time_is_over(
    library: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(retention_ms=1)
    with library.producer() as producer:
        producer.send(topic, [Sent(value=b"gone")])
        wait_until(lambda: start_offset(raw, topic) == 1, "the only record has gone")
        assert producer.send(topic, [Sent(value=b"next")]) == [1]
    assert list_offset(raw, topic, LATEST).offset == 2


def test_deleted_records_are_out_of_range_and_the_rest_is_served(
    client: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(segment_bytes=1024)
    for number in range(10):
        produce(raw, topic, batch(b"%d" % number * 500))
    wanted = DeleteRecordsPartition(partition_index=0, offset=5)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
    )
    (told,) = raw.ask(request, 2).topics[0].partitions
    assert (told.error_code, told.low_watermark) == (0, 5)
    assert start_offset(raw, topic) == 5
    assert fetch(raw, topic, offset=4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [one.offset for one in client.consume(topic, 5)] == [5, 6, 7, 8, 9]
