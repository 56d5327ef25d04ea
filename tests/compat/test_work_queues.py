"""Share groups as work queues, on the wire: backoff, dead letters, key order."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from compat.adapter import PATIENCE_S, wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.share_wire import RawMember, partitions, set_group
from compat.test_group_requests import find
from compat.test_share_consumers import Process
from compat.test_share_requests import offsets_of, put
from compat.wire import create_topic, produce
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.messages.offsets import (
    EARLIEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.share_groups import AcknowledgementBatch
from ottla.records.batch import Record, build_batch
from ottla.records.compression import Codec

ACCEPT, RELEASE, REJECT = 1, 2, 3
LONG_MS = 60_000  # that a fetch may wait for what must come
_numbers = count(1)

Headers = dict[str, bytes | None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("queues") / "data",
        {
            "offsets.topic.num.partitions": "1",
            "share.coordinator.state.topic.num.partitions": "2",
        },
    )
    served.start()
    with connected(served.address) as raw:
        find(raw, "any")
    yield served
    served.stop()


@pytest.fixture
def topic(raw: RawConnection) -> str:
    """A topic, and a group of the same name that reads it from the beginning."""
    name = f"work-{next(_numbers)}"
    create_topic(raw, name)
    set_group(raw, name, share_auto_offset_reset="earliest")
    return name


@pytest.fixture
def dead_topic(raw: RawConnection, topic: str) -> str:
    """The topic for dead letters of the group."""
    name = f"dlq.{topic}"
    create_topic(raw, name, 2, errors_deadletterqueue_group_enable="true")
    set_group(raw, topic, errors_deadletterqueue_topic_name=name)
    return name


def joined(raw: RawConnection, topic: str, member_id: str = "m") -> RawMember:
    made = RawMember(raw, topic, member_id, topic)
    made.join()
    return made


def test_a_record_that_waits_holds_up_no_other(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    set_group(raw, topic, share_retry_backoff_ms="3600000", share_retry_backoff_max_ms="86400000")
    member = joined(raw, topic)
    put(raw, topic, 0, 1, 2)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 2, 1)]
    assert member.acknowledge((0, 0, [RELEASE]), (1, 2, [ACCEPT])) == 0
    assert broker.metric("ottla_share_records_waiting") >= 1
    put(raw, topic, 3)
    assert member.take(max_wait_ms=LONG_MS) == [(3, 3, 1)]
    assert member.take(max_wait_ms=0) == []


def test_a_fetch_is_woken_when_a_wait_is_over(raw: RawConnection, topic: str) -> None:
    set_group(raw, topic, share_retry_backoff_ms="400")
    member = joined(raw, topic)
    put(raw, topic, 0)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 0, 1)]
    begun_s = time.monotonic()
    assert member.acknowledge((0, 0, [RELEASE])) == 0
    # Shorter than a lock, whose end would wake it, too.
    assert member.take(max_wait_ms=20_000) == [(0, 0, 2)]
    assert time.monotonic() - begun_s >= 0.4


def test_waits_are_durable_and_a_member_says_how_long_they_are(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    member = joined(raw, topic)
    put(raw, topic, 0, 1, 2)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 2, 1)]
    late = AcknowledgementBatch(
        first_offset=0, last_offset=0, acknowledge_types=[RELEASE], retry_delay_ms=3_600_000
    )
    unseen = AcknowledgementBatch(
        first_offset=1, last_offset=1, acknowledge_types=[RELEASE], is_uncounted=True
    )
    assert member.acknowledge(late, unseen, (2, 2, [RELEASE])) == 0
    broker.end(signal.SIGKILL)
    broker.start()
    with connected(broker.address) as again:
        member = joined(again, topic, "n")
        assert member.take(max_wait_ms=LONG_MS) == [(1, 1, 1), (2, 2, 2)]
        assert member.take(max_wait_ms=0) == []


def test_without_a_limit_a_record_is_delivered_for_ever(raw: RawConnection, topic: str) -> None:
    set_group(raw, topic, share_delivery_count_limit="0")
    member = joined(raw, topic)
    put(raw, topic, 0, 1)
    for deliveries in range(1, 15):
        assert member.take(max_wait_ms=LONG_MS) == [(0, 1, deliveries)]
        assert member.acknowledge((0, 1, [RELEASE])) == 0


# Dead letters


def dead_letters(broker: ServedBroker, topic: str, total: int) -> list[Message]:
    """The records of a topic, which are so many and no more."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: list[Message] = []
    ended: set[int | None] = set()
    with closing(consumer):
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(2)])

        def is_read() -> bool:
            message = consumer.poll(1.0)
            if message is not None:
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
            return len(found) >= total and len(ended) == 2

        wait_until(is_read, f"{total} dead letters are written")
    assert len(found) == total
    return found


def headers_of(message: Message) -> Headers:
    headers = message.headers()
    assert isinstance(headers, list)
    found: Headers = {}
    for name, value in headers:
        assert not isinstance(value, str)
        found[str(name)] = value
    return found


def test_a_rejected_record_is_copied_with_its_cause(
    broker: ServedBroker, raw: RawConnection, topic: str, dead_topic: str
) -> None:
    member = joined(raw, topic)
    record = Record(
        timestamp_ms=TimestampMs(77), key=b"k", value=b"v", headers=(("own", b"1"), ("n", None))
    )
    assert not produce(raw, topic, bytes(build_batch([record, record]))).error_code
    assert member.take(max_wait_ms=LONG_MS) == [(0, 1, 1)]
    assert member.acknowledge((0, 1, [REJECT, ACCEPT])) == 0
    (found,) = dead_letters(broker, dead_topic, 1)
    assert (found.key(), found.value(), found.partition()) == (b"k", b"v", 0)
    assert headers_of(found) == {
        "own": b"1",
        "n": None,
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": topic.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"rejected by a consumer",
        "ottla.dlq.cause": b"rejected",
        "ottla.dlq.sent-at": b"77",
    }
    assert [lag for _, lag in offsets_of(raw, topic)] == [0]


def test_after_the_last_delivery_a_record_is_dead(
    broker: ServedBroker, raw: RawConnection, topic: str, dead_topic: str
) -> None:
    set_group(
        raw,
        topic,
        share_delivery_count_limit="2",
        errors_deadletterqueue_copy_record_enable="false",
    )
    member = joined(raw, topic)
    put(raw, topic, 5)
    for tries in (1, 2):
        assert member.take(max_wait_ms=LONG_MS) == [(0, 0, tries)]
        assert member.acknowledge((0, 0, [RELEASE])) == 0
    (found,) = dead_letters(broker, dead_topic, 1)
    headers = headers_of(found)
    assert (found.key(), found.value()) == (None, None)
    assert headers["ottla.dlq.cause"] == b"delivery-limit"
    assert headers["__dlq.errors.delivery.count"] == b"2"
    assert "ottla.dlq.no-copy" in headers


def test_a_record_that_is_too_large_for_the_topic_is_not_copied(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    name = f"dlq.small-{topic}"
    create_topic(raw, name, 2, errors_deadletterqueue_group_enable="true", max_message_bytes="3000")
    set_group(raw, topic, errors_deadletterqueue_topic_name=name)
    member = joined(raw, topic)
    records = [Record(value=b"x" * size) for size in (5000, 10, 900, 900, 900, 900)]
    assert not produce(raw, topic, bytes(build_batch(records))).error_code
    assert member.take(max_wait_ms=LONG_MS) == [(0, 5, 1)]
    assert member.acknowledge((0, 5, [REJECT])) == 0
    found = dead_letters(broker, name, 6)
    sizes = [len(message.value() or b"") for message in found]
    assert sizes == [0, 10, 900, 900, 900, 900]
    assert ["ottla.dlq.no-copy" in headers_of(message) for message in found] == [
        True,
        *[False] * 5,
    ]


def test_without_a_topic_dead_records_stay_archiving_and_others_go_on(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    """They are written when the topic is there, also after a crash, and when no member reads."""
    name = f"dlq.{topic}"
    set_group(raw, topic, errors_deadletterqueue_topic_name=name)
    member = joined(raw, topic)
    put(raw, topic, *range(150))
    assert member.take(max_wait_ms=LONG_MS) == [(0, 149, 1)]
    failures = broker.metric("ottla_dead_letter_failures_total")
    assert member.acknowledge((0, 148, [REJECT]), (149, 149, [ACCEPT])) == 0
    assert broker.metric("ottla_share_records_archiving") == 149
    put(raw, topic, 200)
    assert member.take(max_wait_ms=LONG_MS) == [(150, 150, 1)]
    assert member.acknowledge((150, 150, [ACCEPT])) == 0
    wait_until(
        lambda: broker.metric("ottla_dead_letter_failures_total") > failures, "it is counted"
    )
    broker.end(signal.SIGKILL)
    broker.start()
    with connected(broker.address) as again:
        create_topic(again, name, 2, errors_deadletterqueue_group_enable="true")
        found = dead_letters(broker, name, 149)
        assert sorted(int(message.value() or b"") for message in found) == list(range(149))
        wait_until(lambda: offsets_of(again, topic) == [(151, 0)], "all are archived")
    assert broker.metric("ottla_share_records_archiving") == 0


@pytest.mark.parametrize(
    "name", ["__dlq.internal", "dlq/slash", "other.prefix"], ids=["internal", "form", "prefix"]
)
def test_a_wrong_name_of_a_dead_letter_topic_is_refused(
    raw: RawConnection, topic: str, name: str
) -> None:
    with pytest.raises(AssertionError, match="error_code=40"):
        set_group(raw, topic, errors_deadletterqueue_topic_name=name)


def test_a_group_does_not_read_its_own_dead_letters(
    raw: RawConnection, topic: str, dead_topic: str
) -> None:
    member = RawMember(raw, topic, "m", dead_topic)
    member.join()
    (partition,) = partitions(member.fetch())
    assert partition.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_each_rejected_record_has_one_dead_letter_through_kills(
    broker: ServedBroker, raw: RawConnection, topic: str, dead_topic: str
) -> None:
    """Consumers that reject every third record, and a broker that is killed again and again."""
    total, kills = 600, 4
    consumers = [Process(broker, topic, "3") for _ in range(2)]
    producer = Producer({"bootstrap.servers": broker.address})
    try:
        for kill in range(kills):
            for number in range(kill * total // kills, (kill + 1) * total // kills):
                producer.produce(topic, value=b"%d" % number)
            assert producer.flush(PATIENCE_S) == 0
            done = sum(len(one.done) for one in consumers)
            wait_until(
                lambda done=done: sum(len(one.done) for one in consumers) > done,  # type: ignore[misc]
                "the consumers work",
            )
            broker.end(signal.SIGKILL)
            broker.start()
        with connected(broker.address) as again:
            wait_until(
                lambda: [lag for _, lag in offsets_of(again, topic)] == [0], "all are finished"
            )
    finally:
        for one in consumers:
            one.end(signal.SIGKILL)
    rejected = list(range(0, total, 3))
    found = dead_letters(broker, dead_topic, len(rejected))
    assert sorted(int(message.value() or b"") for message in found) == rejected
    got = {number for one in consumers for number in one.got}
    assert got == set(range(total))


# The order of keys


def put_keys(raw: RawConnection, topic: str, *keys: bytes | None) -> None:
    records = [Record(key=key, value=b"v") for key in keys]
    assert not produce(raw, topic, bytes(build_batch(records, codec=Codec.ZSTD))).error_code


def test_records_of_a_key_are_delivered_one_after_the_other(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    set_group(raw, topic, share_ordering="key")
    first, second = joined(raw, topic), RawMember(raw, topic, "n", topic)
    put_keys(raw, topic, b"a", b"a", b"b", b"b", None, None)
    put_keys(raw, topic, b"a", b"c")
    assert first.take(max_wait_ms=LONG_MS, max_records=3) == [(0, 0, 1), (2, 2, 1), (4, 4, 1)]
    assert second.take(max_wait_ms=LONG_MS) == [(5, 5, 1), (7, 7, 1)]
    assert second.take(max_wait_ms=0) == []
    assert broker.metric("ottla_share_records_ordered") >= 6
    assert first.acknowledge((0, 0, [RELEASE])) == 0
    assert second.take(max_wait_ms=LONG_MS) == [(0, 0, 2)], "it goes before the next of its key"
    assert second.acknowledge((0, 0, [ACCEPT]), (5, 5, [ACCEPT])) == 0
    assert first.take(max_wait_ms=LONG_MS) == [(1, 1, 1)]
    broker.end(signal.SIGKILL)
    broker.start()
    with connected(broker.address) as again:
        after = joined(again, topic, "o")
        assert after.take(max_wait_ms=LONG_MS) == [(1, 2, 1), (4, 4, 1), (7, 7, 1)]
        assert after.acknowledge((1, 2, [ACCEPT])) == 0
        assert after.take(max_wait_ms=LONG_MS) == [(3, 3, 1), (6, 6, 1)]


def test_keys_stay_in_order_with_many_consumers_and_kills(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    """More consumers than partitions; one of them, and the broker, are killed."""
    set_group(raw, topic, share_ordering="key")
    keys, total = 40, 600
    consumers = [Process(broker, topic) for _ in range(4)]
    producer = Producer({"bootstrap.servers": broker.address})
    try:
        for number in range(total):
            producer.produce(topic, key=b"%d" % (number % keys), value=b"%d" % number)
        assert producer.flush(PATIENCE_S) == 0
        wait_until(lambda: sum(len(one.done) for one in consumers) > 50, "the consumers work")
        consumers[0].end(signal.SIGKILL)
        broker.end(signal.SIGKILL)
        broker.start()
        with connected(broker.address) as again:
            wait_until(
                lambda: [lag for _, lag in offsets_of(again, topic)] == [0], "all are finished"
            )
    finally:
        for one in consumers:
            one.end(signal.SIGKILL)
    times = sorted((at_s, kind, value) for one in consumers for kind, value, at_s in one.times)
    got: dict[int, float] = {}
    done: dict[int, float] = {}
    for at_s, kind, value in times:
        (got if kind == "got" else done).setdefault(value, at_s)
    assert got.keys() == set(range(total))
    for value in range(keys, total):
        before = value - keys  # of the same key
        assert got[before] < got[value]
        assert done.get(before, got[before]) <= got[value], "it was acknowledged before"


# Records that go when they are acknowledged


def start_offset(raw: RawConnection, topic: str) -> int:
    wanted = ListOffsetsTopic(
        name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)]
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[wanted])
    return int(raw.ask(request, 7).topics[0].partitions[0].offset)


def test_records_go_once_every_share_group_has_finished_them(raw: RawConnection) -> None:
    """Until then, and while a group has subscribed and not begun to read, they stay."""
    name, kept = f"queue-{next(_numbers)}", f"kept-{next(_numbers)}"
    create_topic(raw, name, delete_acknowledged="true")
    create_topic(raw, kept, delete_acknowledged="true")
    groups = [f"{name}-{letter}" for letter in "abc"]
    for group in groups:
        set_group(raw, group, share_auto_offset_reset="earliest")
    put(raw, name, *range(10))
    put(raw, kept, 1)
    members = [RawMember(raw, group, "m", name) for group in groups]
    for member in members:
        member.join()
    first, second, third = members
    for member in (first, second):
        assert member.take(max_wait_ms=LONG_MS) == [(0, 9, 1)]
    assert first.acknowledge((0, 9, [ACCEPT])) == 0
    assert second.acknowledge((0, 4, [ACCEPT])) == 0
    fetched: list[tuple[int, int, int]] = []

    def is_deleted() -> bool:
        if start_offset(raw, name) == 0 and not fetched:  # the third has not begun
            fetched.extend(third.take(max_wait_ms=LONG_MS))
            assert third.acknowledge((0, 8, [ACCEPT])) == 0
        return start_offset(raw, name) > 0

    wait_until(is_deleted, "what all have finished is deleted")
    assert start_offset(raw, name) == 5, "the second has not finished the rest"
    assert fetched == [(0, 9, 1)]
    assert second.acknowledge((5, 9, [ACCEPT])) == 0
    wait_until(lambda: start_offset(raw, name) == 9, "the next ones go, too")
    assert start_offset(raw, kept) == 0, "no share group reads it"
