"""What goes in comes out: every client, every codec, every shape of a record."""

import pytest

from compat.adapter import BEGINNING, CODECS, Client, MakeTopic, Received, Refused, Sent
from compat.served import ServedBroker
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.records.batch import Record, build_batch

SHAPES = (
    Sent(value=b"plain"),
    Sent(value=b"keyed", key=b"k"),
    Sent(value=b"", key=b"empty value"),
    Sent(value=b""),
    Sent(value=None, key=b"null value"),
    Sent(value=None),
    Sent(value=b"empty key", key=b""),
    Sent(value=b"headers", headers=(("a", b"1"), ("b", b""), ("a", b"again"))),
    Sent(value=b"x" * 10_000, key=b"y" * 1000, headers=(("h", b"z" * 1000),)),
)


def content(record: Sent | Received) -> tuple[object, ...]:
    return record.key, record.value, record.headers


@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_all_others_read(
    client: Client, codec: str, every_client: list[Client], make_topic: MakeTopic
) -> None:
    topic = make_topic()
    sent = [one for one in SHAPES if client.can_send(one)]
    offsets = client.produce(topic, *sent, codec=codec)
    if client.tells_offsets:
        assert offsets == list(range(len(sent)))
    for reader in every_client:
        got = reader.consume(topic, len(sent))
        assert [content(one) for one in got] == [content(one) for one in sent], reader.name
        assert [one.offset for one in got] == list(range(len(sent))), reader.name


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_compressed_batch_is_stored_compressed(
    client: Client, codec: str, make_topic: MakeTopic, broker: ServedBroker
) -> None:
    topic = make_topic()
    client.produce(topic, Sent(value=b"x" * 50_000), codec=codec)
    assert broker.metric("ottla_log_size_bytes", partition="0", topic=topic) < 10_000


@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_can_choose_the_codec_of_its_batches(
    compression: str, every_client: list[Client], make_topic: MakeTopic
) -> None:
    topic = make_topic(compression_type=compression)
    sent = [
        Sent(value=f"{client.name} {codec}".encode() * 100, key=b"k", headers=(("h", b"1"),))
        for client in every_client
        for codec in CODECS
    ]
    for number, record in enumerate(sent):
        client = every_client[number // len(CODECS)]
        client.produce(topic, record, codec=CODECS[number % len(CODECS)])
    for reader in every_client:
        got = reader.consume(topic, len(sent))
        assert [content(one) for one in got] == [content(one) for one in sent], reader.name


def value_that_fills(batch_bytes: int) -> bytes:
    """The value of a lone record whose batch has exactly this size."""
    size = batch_bytes - len(build_batch([Record(value=b"")]))
    while len(build_batch([Record(value=bytes(size))])) > batch_bytes:
        size -= 1
    value = b"v" * size
    assert len(build_batch([Record(value=value)])) == batch_bytes
    return value


@pytest.mark.parametrize("batch_bytes_max", [20_000, 1_048_588])
def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(
    client: Client, batch_bytes_max: int, make_topic: MakeTopic, confluent: Client
) -> None:
    topic = make_topic(max_message_bytes=batch_bytes_max)
    largest = Sent(value=value_that_fills(batch_bytes_max))
    assert largest.value is not None
    with client.producer() as producer:
        producer.send(topic, [largest])
        with pytest.raises(Refused) as refused:
            producer.send(topic, [Sent(value=largest.value + b"v")])
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        producer.send(topic, [Sent(value=b"and on we go")])
    got = confluent.consume(topic, 2)
    assert [one.value for one in got] == [largest.value, b"and on we go"]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_every_size_comes_back_whole(client: Client, codec: str, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes=20 << 20)
    # Around the powers of two at which the lengths inside a record need another byte.
    sizes = [1, 63, 64, 65, 127, 128, 8191, 8192, 8193, 65_536, 1_048_576, 3_000_000]
    sent = [Sent(value=b"s" * size, key=b"k") for size in sizes]
    client.produce(topic, *sent, codec=codec)
    assert [one.value for one in client.consume(topic, len(sent))] == [one.value for one in sent]


def test_producers_keep_their_time_on_create_time_topics(
    library: Client, make_topic: MakeTopic, every_client: list[Client]
) -> None:
    topic = make_topic(message_timestamp_type="CreateTime", retention_ms=-1)
    library.produce(topic, Sent(value=b"old", timestamp_ms=1_000_000_000_123))
    for reader in every_client:
        (got,) = reader.consume(topic, 1)
        assert (got.timestamp_ms, got.is_log_append_time) == (1_000_000_000_123, False)


@pytest.mark.parametrize("codec", CODECS)
def test_the_broker_gives_its_time_on_log_append_time_topics(
    library: Client, codec: str, make_topic: MakeTopic, every_client: list[Client]
) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    clock = SystemClock()
    before_ms = clock.now_ms()
    library.produce(topic, Sent(value=b"old", timestamp_ms=1_000_000_000_123), codec=codec)
    after_ms = clock.now_ms()
    for reader in every_client:
        (got,) = reader.consume(topic, 1)
        assert got.is_log_append_time
        assert before_ms <= got.timestamp_ms <= after_ms


def test_a_time_too_far_away_is_refused(library: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(
        message_timestamp_before_max_ms=3_600_000, message_timestamp_after_max_ms=3_600_000
    )
    now_ms = SystemClock().now_ms()
    with library.producer() as producer:
        for far_ms in (now_ms - 7_200_000, now_ms + 7_200_000):
            with pytest.raises(Refused) as refused:
                producer.send(topic, [Sent(value=b"x", timestamp_ms=far_ms)])
            assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
        producer.send(topic, [Sent(value=b"now")])
    assert [one.value for one in library.consume(topic, 1)] == [b"now"]


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_on_every_kind_of_topic(
    client: Client, acks: int, durability: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(durability=durability)
    sent = [Sent(value=str(number).encode(), key=b"k") for number in range(500)]
    with client.producer(acks=acks) as producer:
        offsets = producer.send(topic, sent)
        if acks != 0 and client.tells_offsets:
            assert offsets == list(range(500))
        got = client.consume(topic, 500)
    assert [one.value for one in got] == [one.value for one in sent]


def test_fifty_partitions_each_keep_their_own_order(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=50)
    sent = [
        Sent(value=b"%d of %d" % (number, partition), key=b"k", partition=partition)
        for partition in range(50)
        for number in range(20)
    ]
    client.produce(topic, *sent)
    with client.consumer(topic, dict.fromkeys(range(50), BEGINNING)) as consumer:
        got = consumer.take(len(sent))
    for partition in range(50):
        here = [one for one in got if one.partition == partition]
        assert [one.value for one in here] == [b"%d of %d" % (n, partition) for n in range(20)]
        assert [one.offset for one in here] == list(range(20))


def test_records_of_one_key_go_to_one_partition(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=8)
    keys = [str(number).encode() for number in range(40)]
    sent = [Sent(value=b"x", key=key, partition=None) for key in keys * 2]
    client.produce(topic, *sent)
    with client.consumer(topic, dict.fromkeys(range(8), BEGINNING)) as consumer:
        got = consumer.take(len(sent))
    places = {(one.key, one.partition) for one in got}
    assert len(places) == len(keys)
    assert len({partition for _, partition in places}) > 1
