"""Topics that come, grow, go and come again while clients are using them."""

import threading
from collections.abc import Callable

import pytest

from compat.adapter import BEGINNING, Admin, Client, Received, Refused, Sent, wait_until
from compat.conftest import LIBRARIES, MakeTopic, create_topic
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import batch, fetch_request, produce, topic_id, want
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState


def delete_topic(raw: RawConnection, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    answer = raw.ask(request, 6)
    assert answer.responses[0].error_code == ErrorCode.NONE


def test_a_topic_that_is_made_again_is_a_new_one(raw: RawConnection, make_topic: MakeTopic) -> None:
    name = make_topic()
    old = topic_id(raw, name)
    produce(raw, name, batch(b"old"))
    delete_topic(raw, name)
    create_topic(raw, name)
    new = topic_id(raw, name)
    assert new != old
    assert produce(raw, old, batch(b"late"), version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(raw, new, batch(b"new"), version=13).base_offset == 0


def test_a_producer_finds_the_topic_that_was_made_again(
    library: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic()
    with library.producer() as producer:
        producer.send(name, [Sent(value=b"old")])
        delete_topic(raw, name)
        create_topic(raw, name)
        producer.send(name, [Sent(value=b"new")])
    assert [one.value for one in library.consume(name, 1)] == [b"new"]


def test_an_idempotent_producer_finds_the_topic_that_was_made_again(
    library: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic()
    with library.producer(idempotent=True) as producer:
        producer.send(name, [Sent(value=b"old")])
        delete_topic(raw, name)
        create_topic(raw, name)
        producer.send(name, [Sent(value=b"new")])
    assert [one.value for one in library.consume(name, 1)] == [b"new"]


def test_a_consumer_finds_the_topic_that_was_made_again(
    library: Client, raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic()
    produce(raw, name, batch(b"old", b"old", b"old"))
    with library.consumer(name, {0: BEGINNING}, reset="earliest") as consumer:
        assert [one.value for one in consumer.take(3)] == [b"old"] * 3
        delete_topic(raw, name)
        create_topic(raw, name)
        got: list[Received] = []
        reading = threading.Thread(target=lambda: got.extend(consumer.take(1)))
        reading.start()
        # Offset 3, where the consumer is, lies beyond the end of the new topic.
        produce(raw, name, batch(b"new"))
        reading.join()
    assert got[0].value == b"new"


def test_a_fetch_that_waits_is_told_that_its_topic_has_gone(
    raw: RawConnection, make_topic: MakeTopic, broker: ServedBroker
) -> None:
    name = make_topic()
    wanted = topic_id(raw, name)
    before = broker.metric("ottla_requests_total", api="fetch")
    with connected(broker.address) as by_name, connected(broker.address) as by_id:
        by_name.tell(fetch_request({name: [want()]}, max_wait_ms=240_000), 12)
        by_id.tell(fetch_request({wanted: [want()]}, max_wait_ms=240_000), 13)
        wait_until(
            lambda: broker.metric("ottla_requests_total", api="fetch") == before + 2,
            "both fetches wait",
        )
        delete_topic(raw, name)
        (told,) = by_name.answer(ApiKey.FETCH, 12).responses[0].partitions
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (told,) = by_id.answer(ApiKey.FETCH, 13).responses[0].partitions
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_partitions_that_are_added_are_used_while_producing_goes_on(
    library: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    name = make_topic(partitions=2)
    with library.producer() as producer:
        producer.send(name, [Sent(value=b"%d" % p, partition=p) for p in range(2)])
        admin.add_partitions(name, 5)
        with library.producer() as later:
            later.send(name, [Sent(value=b"%d" % p, partition=p) for p in range(5)])
        producer.send(name, [Sent(value=b"again", partition=p) for p in range(2)])
    with library.consumer(name, dict.fromkeys(range(5), BEGINNING)) as consumer:
        got = consumer.take(9)
    assert sorted(one.partition for one in got) == [0, 0, 0, 1, 1, 1, 2, 3, 4]


def test_a_topic_is_made_for_whoever_produces_to_it(
    client: Client, new_name: Callable[[], str]
) -> None:
    name = new_name()
    client.produce(name, Sent(value=b"hello"))
    assert [one.value for one in client.consume(name, 1)] == [b"hello"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory):
    """A broker that makes no topics by itself."""
    served = ServedBroker(
        tmp_path_factory.mktemp("strict") / "data",
        {"auto.create.topics.enable": "false", "delete.topic.enable": "false"},
    )
    served.start()
    yield served
    served.stop_and_check()


@pytest.mark.parametrize("name", LIBRARIES)
def test_no_topic_is_made_where_that_is_forbidden(name: str, strict: ServedBroker) -> None:
    admin = LIBRARIES[name](strict.address).admin()
    with pytest.raises(Refused) as refused:
        admin.partition_count("not-there")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "not-there" not in admin.topics()


def test_a_request_may_forbid_that_a_topic_is_made(
    raw: RawConnection, new_name: Callable[[], str], strict: ServedBroker
) -> None:
    def ask(connection: RawConnection, version: int, *, allow: bool) -> int:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=new_name())], allow_auto_topic_creation=allow
        )
        return int(connection.ask(request, version).topics[0].error_code)

    assert ask(raw, 12, allow=False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(raw, 12, allow=True) == ErrorCode.NONE
    assert ask(raw, 3, allow=True) == ErrorCode.NONE  # older versions cannot forbid it
    with connected(strict.address) as other:
        assert ask(other, 12, allow=True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_not_deleted_where_that_is_forbidden(strict: ServedBroker) -> None:
    with connected(strict.address) as raw:
        create_topic(raw, "kept")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="kept")], timeout_ms=10_000)
        (told,) = raw.ask(request, 6).responses
    assert told.error_code == ErrorCode.TOPIC_DELETION_DISABLED
