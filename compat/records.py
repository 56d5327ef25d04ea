"""Records written and read with librdkafka, for the tests of frameworks."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S: Final = 240
_POLL_S: Final = 0.2


def create_topics(address: str, partitions: int, *names: str, **settings: str) -> None:
    """Topics with one replica; underscores in the names of settings stand for dots."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": address})
    new = [NewTopic(name, partitions, 1, config=dict[str, Any](config)) for name in names]
    for made in admin.create_topics(new).values():
        made.result(PATIENCE_S)


def send(address: str, topic: str, records: Iterable[tuple[str | None, str]]) -> None:
    """Keys and values; returns when all are acknowledged."""
    producer: Any = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    problems: list[Any] = []

    def told(problem: Any, _: Any) -> None:
        if problem is not None:
            problems.append(problem)

    for key, value in records:
        producer.produce(topic, value, key, on_delivery=told)
    assert producer.flush(PATIENCE_S) == 0
    assert problems == []


@contextmanager
def reader(address: str, topic: str, partitions: int) -> Iterator[Callable[[], list[Any]]]:
    """A function that returns the committed records that came since its last call."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # A broker that is the only one is looked for again where it was.
            "metadata.recovery.strategy": "none",
        }
    )
    first = confluent_kafka.OFFSET_BEGINNING
    with closing(consumer):
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, one, first) for one in range(partitions)]
        )

        def read_more() -> list[Any]:
            found = consumer.consume(1000, _POLL_S)
            return [one for one in found if one.error() is None]

        yield read_more


def read_until(
    address: str,
    topic: str,
    partitions: int,
    is_enough: Callable[[list[tuple[str, str]]], bool],
    watch: Callable[[], None] = lambda: None,
) -> list[tuple[str, str]]:
    """Committed keys and values until they are enough; `watch` may see that no more will come."""
    found = list[tuple[str, str]]()
    deadline_s = time.monotonic() + PATIENCE_S
    with reader(address, topic, partitions) as read_more:
        while not is_enough(found):
            watch()
            assert time.monotonic() < deadline_s, f"{topic}: {len(found)} records, no more come"
            found += [_text(one) for one in read_more()]
        found += [_text(one) for _ in range(5) for one in read_more()]  # what comes twice comes now
    return found


def _text(message: Any) -> tuple[str, str]:
    return (message.key() or b"").decode(), (message.value() or b"").decode()


def topic_settings(address: str, topic: str) -> Mapping[str, str]:
    """The settings of a topic that were given to it, not those it inherits."""
    resource = confluent_kafka.admin.ConfigResource("TOPIC", topic)
    admin = AdminClient({"bootstrap.servers": address})
    entries = next(iter(admin.describe_configs([resource]).values())).result(PATIENCE_S)
    given = confluent_kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: one.value for name, one in entries.items() if one.source == given}
