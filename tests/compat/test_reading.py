"""Where reading begins, how a reader waits, and what sessions save."""

import threading

import pytest

from compat.adapter import BEGINNING, END, Client, MakeTopic, Received, Refused, Sent, wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import batch, fetch_request, fetched, produce, want
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey

A_LONG_TIME_MS = 240_000  # longer than any test may take: only a produce can end such a wait


def values(got: list[Received]) -> list[bytes | None]:
    return [one.value for one in got]


def numbered(count: int) -> list[Sent]:
    return [Sent(value=str(number).encode(), key=b"k") for number in range(count)]


def test_reading_begins_where_the_consumer_says(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.produce(topic, *numbered(10))
    assert values(client.consume(topic, 10, start=BEGINNING))[0] == b"0"
    assert values(client.consume(topic, 3, start=7)) == [b"7", b"8", b"9"]
    assert values(client.consume(topic, 2, start=4, read_committed=True)) == [b"4", b"5"]


def test_an_offset_inside_a_batch_gives_no_record_before_it(
    client: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(raw, topic, batch(*(str(number).encode() for number in range(100))))
    got = client.consume(topic, 10, start=57)
    assert [one.offset for one in got] == list(range(57, 67))
    assert values(got)[0] == b"57"


def test_a_reader_at_the_end_sees_only_what_comes_later(
    client: Client, confluent: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    confluent.produce(topic, Sent(value=b"old"))
    stop = threading.Event()

    def go_on_producing() -> None:
        while not stop.is_set():
            confluent.produce(topic, Sent(value=b"new"))

    producing = threading.Thread(target=go_on_producing)
    with client.consumer(topic, {0: END}) as consumer:
        producing.start()
        try:
            (got,) = consumer.take(1)
        finally:
            stop.set()
            producing.join()
    assert got.value == b"new"


def test_reading_begins_at_a_time(library: Client, client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    start_ms = SystemClock().now_ms() - 1_000_000
    library.produce(
        topic,
        *(Sent(value=b"%d" % n, timestamp_ms=start_ms + 100 * n) for n in range(10)),
        codec="gzip",
    )
    assert client.offset_for_time(topic, 0, start_ms - 5) == 0
    assert client.offset_for_time(topic, 0, start_ms + 300) == 3
    assert client.offset_for_time(topic, 0, start_ms + 301) == 4
    assert client.offset_for_time(topic, 0, start_ms + 901) is None


def test_an_offset_that_is_not_there_is_an_error(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.produce(topic, *numbered(3))
    with client.consumer(topic, {0: 1000}) as consumer, pytest.raises(Refused) as refused:
        consumer.take(1)
    # librdkafka tells of the reset that it may not make, with a code of its own
    assert refused.value.code in {ErrorCode.OFFSET_OUT_OF_RANGE, -140, None}


def test_an_offset_that_is_not_there_can_mean_the_beginning(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    client.produce(topic, *numbered(3))
    with client.consumer(topic, {0: 1000}, reset="earliest") as consumer:
        assert values(consumer.take(3)) == [b"0", b"1", b"2"]


def test_committed_reading_of_a_plain_topic_sees_everything(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    client.produce(topic, *numbered(20))
    assert values(client.consume(topic, 20, read_committed=True)) == [
        one.value for one in numbered(20)
    ]


def fetch_count(broker: ServedBroker) -> float:
    return broker.metric("ottla_requests_total", api="fetch")


def test_a_waiting_consumer_is_woken_by_a_produce(
    client: Client, raw: RawConnection, make_topic: MakeTopic, broker: ServedBroker
) -> None:
    topic = make_topic()
    produce(raw, topic, batch(b"first"))
    got: list[Received] = []
    before = fetch_count(broker)
    with client.consumer(topic, {0: BEGINNING}, wait_ms=A_LONG_TIME_MS) as consumer:
        assert values(consumer.take(1)) == [b"first"]
        reading = threading.Thread(target=lambda: got.extend(consumer.take(1)))
        reading.start()
        # The first fetch brought the first record. The second has nothing to bring: it waits.
        wait_until(lambda: fetch_count(broker) >= before + 2, "the consumer fetches again")
        produce(raw, topic, batch(b"second"))
        reading.join()
    assert values(got) == [b"second"]


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_a_waiting_fetch_is_answered_when_there_is_enough(
    raw: RawConnection, make_topic: MakeTopic, durability: str, broker: ServedBroker
) -> None:
    topic = make_topic(durability=durability)
    one_batch = batch(b"v" * 1000)
    request = fetch_request(
        {topic: [want()]}, max_wait_ms=A_LONG_TIME_MS, min_bytes=2 * len(one_batch)
    )
    with connected(broker.address) as reader:
        reader.tell(request, 12)
        produce(raw, topic, one_batch)
        produce(raw, topic, one_batch)
        answer = reader.answer(ApiKey.FETCH, 12)
    records = fetched(answer)[topic, 0].records
    assert records is not None
    assert len(records) == 2 * len(one_batch)


def test_a_waiting_fetch_is_answered_empty_when_its_time_is_over(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    answer = raw.ask(fetch_request({topic: [want(0), want(1)]}, max_wait_ms=20), 12)
    assert set(fetched(answer)) == {(topic, 0), (topic, 1)}
    assert not any(one.records for one in fetched(answer).values())


def test_sessions_make_fetches_of_many_partitions_short(
    kafka_python: Client, broker: ServedBroker, raw: RawConnection, make_topic: MakeTopic
) -> None:
    # Of the clients here only kafka-python uses sessions; Java does as well.
    topic = make_topic(partitions=40)
    for partition in range(40):
        produce(raw, topic, batch(b"%d" % partition), partition=partition)
    before = broker.metric("ottla_fetch_sessions_continued_total")
    with kafka_python.consumer(topic, dict.fromkeys(range(40), BEGINNING)) as consumer:
        first = consumer.take(40)
        for number in range(10):
            produce(raw, topic, batch(b"more"), partition=number)
        second = consumer.take(10)
    assert broker.metric("ottla_fetch_sessions_continued_total") > before
    assert sorted(one.partition for one in first) == list(range(40))
    assert sorted(one.partition for one in second) == list(range(10))
    assert {one.offset for one in second} == {1}
