"""The kombu transport against a broker in a process of its own, without Celery."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import kombu
import pytest

import ottla.kombu
from compat.adapter import wait_until
from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import set_group
from compat.test_share_requests import offsets_of
from compat.test_work_queues import dead_letters
from compat.wire import create_topic
from ottla.kombu.routes import Binding
from ottla.kombu.session import Session

LONG_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("kombu") / "data",
        {
            "offsets.topic.num.partitions": "1",
            "share.coordinator.state.topic.num.partitions": "1",
        },
    )
    served.start()
    yield served
    served.stop()


def connect(broker: ServedBroker) -> kombu.Connection:
    return kombu.Connection(f"ottla://{broker.address}")


@pytest.fixture
def connection(broker: ServedBroker) -> Iterator[kombu.Connection]:
    with connect(broker) as made:
        yield made


@pytest.fixture
def queue(new_name: Callable[[], str]) -> kombu.Queue:
    name = f"kombu-{new_name()}"
    return kombu.Queue(name, kombu.Exchange(name, "direct"), routing_key=name)


def send(connection: kombu.Connection, queue: kombu.Queue, *bodies: object, **more: object) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(
                {"body": body},
                exchange=queue.exchange,
                routing_key=queue.routing_key,
                declare=[queue],
                **more,
            )


def receive(
    connection: kombu.Connection,
    queue: kombu.Queue,
    count: int,
    *,
    prefetch: int = 0,
    no_ack: bool = False,
) -> tuple[kombu.Consumer, list[kombu.Message]]:
    """A consumer, and so many messages that it has not acknowledged."""
    found: list[kombu.Message] = []
    consumer = kombu.Consumer(
        connection.channel(),
        [queue],
        on_message=found.append,
        prefetch_count=prefetch or None,
        no_ack=no_ack,
    )
    consumer.consume()
    drain(connection, lambda: len(found) >= count)
    assert len(found) >= count
    return consumer, found


def drain(
    connection: kombu.Connection, is_done: Callable[[], bool], wait_s: float = LONG_S
) -> None:
    end_s = time.monotonic() + wait_s
    while not is_done() and time.monotonic() < end_s:
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.5)


def bodies(messages: list[kombu.Message]) -> list[object]:
    return [message.payload["body"] for message in messages]


def lag(broker: ServedBroker, queue: kombu.Queue) -> int:
    with connected(broker.address) as raw:
        return sum(lag for _, lag in offsets_of(raw, queue.name))


def test_messages_are_acknowledged_one_by_one(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    send(connection, queue, 0, 1, 2)
    consumer, found = receive(connection, queue, 3)
    assert sorted(bodies(found), key=str) == [0, 1, 2]
    assert not any(message.delivery_info["redelivered"] for message in found)
    found[1].ack()
    consumer.channel.close()
    _, again = receive(connection, queue, 2)
    assert sorted(bodies(again), key=str) == sorted([bodies(found)[0], bodies(found)[2]], key=str)
    for message in again:
        message.ack()
    wait_until(lambda: lag(broker, queue) == 0, "all are finished")


def test_a_requeued_message_comes_again_and_a_rejected_one_is_dead(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    dead = f"dlq.{queue.name}"
    with connected(broker.address) as raw:
        create_topic(raw, dead, 2, errors_deadletterqueue_group_enable="true")
        set_group(raw, queue.name, errors_deadletterqueue_topic_name=dead)
    send(connection, queue, "one")
    _, found = receive(connection, queue, 1)
    for delivery in range(1, 12):
        found[-1].requeue()
        drain(connection, lambda delivery=delivery: len(found) > delivery)  # type: ignore[misc]
        assert len(found) == delivery + 1, "however often it was requeued"
    found[-1].reject()
    assert len(dead_letters(broker, dead, 1)) == 1


def test_no_more_messages_are_held_than_the_prefetch_count(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    send(connection, queue, *range(6))
    _, found = receive(connection, queue, 2, prefetch=2)
    drain(connection, lambda: len(found) > 2, wait_s=1.0)
    assert len(found) == 2
    with connect(broker) as other:
        _, others = receive(other, queue, 4)
        assert sorted([*bodies(found), *bodies(others)], key=str) == list(range(6))
        for message in others:
            message.ack()
    found[0].ack()
    found[1].ack()
    wait_until(lambda: lag(broker, queue) == 0, "all are finished")


def test_a_consumer_that_does_not_acknowledge_gets_each_message_once(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    send(connection, queue, 1, 2)
    receive(connection, queue, 2, no_ack=True)
    wait_until(lambda: lag(broker, queue) == 0, "they are finished")


def test_an_expired_message_is_not_delivered(
    connection: kombu.Connection, queue: kombu.Queue
) -> None:
    send(connection, queue, "late", expiration=0.001)
    send(connection, queue, "in time", expiration=3600)
    _, found = receive(connection, queue, 1)
    assert bodies(found) == ["in time"]
    found[0].ack()


def test_a_fanout_reaches_every_process_that_is_bound(
    broker: ServedBroker, connection: kombu.Connection, new_name: Callable[[], str]
) -> None:
    exchange = kombu.Exchange(f"fan-{new_name()}", "fanout", durable=False)
    queues = [
        kombu.Queue(f"{exchange.name}-{n}", exchange, auto_delete=True, durable=False)
        for n in range(2)
    ]
    with connect(broker) as other, connect(broker) as sender:
        first: list[kombu.Message] = []
        second: list[kombu.Message] = []
        for conn, queue, found in ((connection, queues[0], first), (other, queues[1], second)):
            kombu.Consumer(conn.channel(), [queue], on_message=found.append).consume()
        with sender.Producer() as producer:
            producer.publish({"body": "to all"}, exchange=exchange, declare=[exchange])
        drain(connection, lambda: bool(first))
        drain(other, lambda: bool(second))
    assert bodies(first) == bodies(second) == ["to all"]


def test_a_binding_of_another_process_is_used(
    broker: ServedBroker, connection: kombu.Connection, new_name: Callable[[], str]
) -> None:
    """The sender knows the exchange alone; a topic's pattern decides."""
    exchange = kombu.Exchange(f"news-{new_name()}", "topic")
    queue = kombu.Queue(f"{exchange.name}-sport", exchange, routing_key="sport.#")
    with connect(broker) as sender:
        sender.ensure_connection()
        sender.default_channel  # noqa: B018  # connected before the binding is made
        found: list[kombu.Message] = []
        consumer = kombu.Consumer(connection.channel(), [queue], on_message=found.append)
        consumer.consume()
        with sender.Producer() as producer:
            for key in ("sport.ball", "weather"):
                producer.publish({"body": key}, exchange=exchange, routing_key=key)
        drain(connection, lambda: bool(found))
        drain(connection, lambda: len(found) > 1, wait_s=0.5)
    assert bodies(found) == ["sport.ball"]
    found[0].ack()


def test_a_binding_that_was_just_made_is_looked_for_before_a_message_is_sent(
    broker: ServedBroker, new_name: Callable[[], str]
) -> None:
    """The sender's loop stands still while another process binds the queue."""
    name = f"kombu-{new_name()}"
    sender, receiver = Session(broker.address), Session(broker.address)
    with asyncio.Runner() as sending, asyncio.Runner() as receiving:
        sending.run(sender.open())
        receiving.run(receiver.open())
        receiving.run(receiver.declare(name, is_durable=True))
        receiving.run(receiver.bind(Binding(name, "direct", name, name)))
        sending.run(sender.publish({"body": "first"}, name, name, "direct"))
        (lease,) = receiving.run(receiver.get(name, 1, LONG_S))
        assert json.loads(lease.record.record.value or b"") == {"body": "first"}
        sending.run(sender.close())
        receiving.run(receiver.close())


def test_a_queue_that_was_unbound_gets_no_messages_of_other_processes(
    broker: ServedBroker, new_name: Callable[[], str]
) -> None:
    name = f"kombu-{new_name()}"
    binding = Binding(name, "direct", name, name)
    sender, receiver = Session(broker.address), Session(broker.address)
    with asyncio.Runner() as runner:
        runner.run(receiver.open())
        runner.run(receiver.declare(name, is_durable=True))
        runner.run(receiver.bind(binding))
        runner.run(receiver.unbind(binding))
        runner.run(sender.open())
        runner.run(sender.publish({"body": "unbound"}, name, name, "direct"))
        runner.run(receiver.bind(binding))
        runner.run(sender.publish({"body": "bound"}, name, name, "direct"))
        (lease,) = runner.run(receiver.get(name, 1, LONG_S))
        assert json.loads(lease.record.record.value or b"") == {"body": "bound"}
        runner.run(sender.close())
        runner.run(receiver.close())


def test_queues_are_purged_measured_and_deleted(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    send(connection, queue, 1, 2, 3)
    channel = connection.channel()
    bound = queue(channel)
    got: list[kombu.Message | None] = []

    def has_one() -> bool:
        got.append(bound.get())
        return got[-1] is not None

    wait_until(has_one, "there is a message")
    assert bound.queue_declare().message_count == 3
    assert got[-1] is not None
    got[-1].requeue()
    purged: list[int] = []

    def is_empty() -> bool:
        purged.append(bound.purge())
        return sum(purged) == 3

    wait_until(is_empty, "what was requeued is purged, too")
    assert bound.queue_declare().message_count == 0
    assert bound.get() is None
    bound.delete()
    with pytest.raises(connection.channel_errors):
        bound.queue_declare(passive=True)


def test_a_connection_outlives_its_broker(
    broker: ServedBroker, connection: kombu.Connection, queue: kombu.Queue
) -> None:
    """What is held is acknowledged after a crash, and what is sent next is delivered."""
    send(connection, queue, "before")
    _, found = receive(connection, queue, 1)
    broker.end(signal.SIGKILL)
    broker.start()
    found[0].ack()
    send(connection, queue, "after")
    drain(connection, lambda: len(found) > 1)
    assert bodies(found) == ["before", "after"]
    found[1].ack()
    wait_until(lambda: lag(broker, queue) == 0, "both are finished")


def test_no_broker_is_a_connection_error() -> None:
    with kombu.Connection("ottla://127.0.0.1:1") as connection:
        with pytest.raises(connection.connection_errors, match=r"127\.0\.0\.1:1"):
            connection.transport.establish_connection()
        assert type(connection.transport) is ottla.kombu.Transport
