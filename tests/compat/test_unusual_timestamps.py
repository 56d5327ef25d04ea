"""Records with no timestamp, with 0, with an old one, and headers that lie about them.

Retention is what makes a wrong time dangerous, and it runs every 50 ms here: nothing goes that
Apache Kafka would keep.
"""

from functools import partial

import pytest

from compat.adapter import Library, MakeTopic, Sent, wait_until
from compat.confluent_client import ConfluentClient
from compat.kafka_python_client import KafkaPythonClient
from compat.raw import RawConnection
from compat.served import ServedBroker
from compat.wire import fetch, list_offset, produce
from ottla.clock import SystemClock
from ottla.model import TimestampMs
from ottla.records.batch import Record, batches, build_batch, records, stamp_max_timestamp
from ottla.records.compression import Codec

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
DAY_MS = 86_400_000


def raw_batch(*timestamps_ms: int, says_ms: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    letters = [Record(timestamp_ms=TimestampMs(one), value=b"v" * 900) for one in timestamps_ms]
    batch = build_batch(letters, codec=codec)
    if says_ms is not None:
        stamp_max_timestamp(batch, says_ms)
    return bytes(batch)


def has_gone(raw: RawConnection, topic: str) -> bool:
    """True when retention has taken the topic's only record."""
    return list_offset(raw, topic, EARLIEST).offset == 1


def wait_retention(raw: RawConnection, make_topic: MakeTopic) -> None:
    """Returns after retention has been everywhere: twice it has taken what it should."""
    for _ in range(2):
        topic = make_topic(retention_ms=1)
        produce(raw, topic, raw_batch(1))
        wait_until(partial(has_gone, raw, topic), "it goes")


def max_timestamps(raw: RawConnection, topic: str) -> list[int]:
    """What the headers on disk say, from the start of the log on."""
    answer = fetch(raw, topic, offset=list_offset(raw, topic, EARLIEST).offset)
    assert answer.records is not None
    return [header.max_timestamp_ms for header, _ in batches(answer.records)]


@pytest.fixture(params=[ConfluentClient, KafkaPythonClient], ids=lambda made: made.name)
def sender(request: pytest.FixtureRequest, broker: ServedBroker) -> Library:
    made: Library = request.param(broker.address)
    return made


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_without_a_timestamp_outlive_retention(
    broker: ServedBroker, raw: RawConnection, make_topic: MakeTopic, codec: str
) -> None:
    topic = make_topic(retention_ms=DAY_MS, segment_bytes=1024)
    client = ConfluentClient(broker.address)
    with client.producer(codec=codec) as producer:
        for _ in range(4):
            producer.send(topic, [Sent(value=b"v" * 900, timestamp_ms=-1)])
    wait_retention(raw, make_topic)
    assert list_offset(raw, topic, EARLIEST).offset == 0
    assert set(max_timestamps(raw, topic)) == {-1}
    found = client.consume(topic, 4)
    assert [(one.offset, one.timestamp_ms) for one in found] == [(at, -1) for at in range(4)]
    assert list_offset(raw, topic, MAX_TIMESTAMP).offset == -1


def test_records_without_a_timestamp_protect_what_lies_behind_them(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    """A log has no holes: the old segment waits for the one before it."""
    topic = make_topic(retention_ms=DAY_MS, segment_bytes=1024)
    for batch in (raw_batch(-1, says_ms=0), raw_batch(1), raw_batch(1)):
        produce(raw, topic, batch)
    wait_retention(raw, make_topic)
    assert list_offset(raw, topic, EARLIEST).offset == 0


def test_what_is_really_old_goes(
    sender: Library, raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(retention_ms=DAY_MS, segment_bytes=1024)
    old_ms = SystemClock().now_ms() - 2 * DAY_MS
    with sender.producer() as producer:
        for timestamp_ms in (1, old_ms, None):
            producer.send(topic, [Sent(value=b"v" * 900, timestamp_ms=timestamp_ms)])
    wait_until(lambda: list_offset(raw, topic, EARLIEST).offset == 2, "two segments go")
    wait_retention(raw, make_topic)
    assert list_offset(raw, topic, EARLIEST).offset == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("lie_ms", [0, -1, 1, 2**63 - 1])
def test_a_header_that_lies_is_corrected_by_its_records(
    raw: RawConnection, make_topic: MakeTopic, lie_ms: int, codec: Codec
) -> None:
    topic = make_topic(retention_ms=DAY_MS, segment_bytes=1024)
    now_ms = SystemClock().now_ms()
    for _ in range(3):
        lying = raw_batch(now_ms, now_ms + 7, says_ms=lie_ms, codec=codec)
        assert not produce(raw, topic, lying).error_code
    wait_retention(raw, make_topic)
    assert list_offset(raw, topic, EARLIEST).offset == 0
    assert set(max_timestamps(raw, topic)) == {now_ms + 7}
    assert list_offset(raw, topic, MAX_TIMESTAMP).offset == 1
    assert list_offset(raw, topic, now_ms + 1).offset == 1
    answer = fetch(raw, topic, offset=0)
    assert answer.records is not None
    _, first = next(batches(answer.records))
    assert [one.timestamp_ms for one in records(first)] == [now_ms, now_ms + 7]
