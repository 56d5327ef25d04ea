"""The topics of the example, and how to read one to its end."""

import json
import time
from collections.abc import Collection, Iterator
from typing import Any, Final

import confluent_kafka
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

RAW: Final = "articles.raw"  # what feeds say, by article id
CLEAN: Final = "articles.clean"  # each article once, by article id
CLICKS: Final = "articles.clicks"  # who read what, by reader
TRENDS: Final = "articles.trends"  # articles about a topic in a window: the last count holds
RECOMMENDED: Final = "articles.recommended"  # what to read next, by reader: the last advice holds
VISITS: Final = "articles.visits"  # what the crawler remembers, by feed: the last visit holds

ALL: Final = (RAW, CLEAN, CLICKS, TRENDS, RECOMMENDED, VISITS)
ARCHIVED: Final = (RAW, CLEAN, CLICKS, TRENDS, RECOMMENDED)
LAST_HOLDS: Final = (TRENDS, RECOMMENDED, VISITS)
_PATIENCE_S: Final = 60
_PAUSE_S: Final = 0.05

Value = dict[str, Any]


def create_topics(address: str) -> None:
    """Make those that are not there. One partition each: arrival decides which of two copies stays.

    Nothing is deleted by age, for the example is meant to be looked at again.
    """
    create(address, ALL, LAST_HOLDS)


def create(address: str, names: Collection[str], compacted: Collection[str]) -> None:
    """Make topics of one partition that are not there, which keep their records for ever."""
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [
        NewTopic(
            name,
            num_partitions=1,
            config={"cleanup.policy": "compact"} if name in compacted else {"retention.ms": "-1"},
        )
        for name in names
    ]
    for made in admin.create_topics(wanted).values():
        try:
            made.result(_PATIENCE_S)
        except confluent_kafka.KafkaException as problem:
            if problem.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def wait_settled(address: str) -> None:
    """Wait until no transaction is open: then everything that was written can be read.

    The commit of a transaction is answered a moment before readers get to see it.
    """
    # Warnings and worse: the library tells of every answer that it throws away.
    admin = AdminClient({"bootstrap.servers": address, "log_level": 4})
    deadline_s = time.monotonic() + _PATIENCE_S
    while _ends(admin, IsolationLevel.READ_COMMITTED) != _ends(
        admin, IsolationLevel.READ_UNCOMMITTED
    ):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"a transaction on {address} has been open for {_PATIENCE_S} s")
        time.sleep(_PAUSE_S)


def _ends(admin: AdminClient, isolation: IsolationLevel) -> dict[str, int]:
    asked = {TopicPartition(name, 0): OffsetSpec.latest() for name in ALL}
    answers = admin.list_offsets(asked, isolation_level=isolation)
    return {tp.topic: answer.result(_PATIENCE_S).offset for tp, answer in answers.items()}


def read_all(address: str, topic: str) -> Iterator[tuple[str, Value]]:
    """Key and value of every committed record, from the beginning of a topic to its end."""
    for message in _read(address, topic):
        yield (message.key() or b"").decode(), value_of(message)


def read_offsets(address: str, topic: str) -> Iterator[int]:
    """The offset of every committed record."""
    for message in _read(address, topic):
        offset = message.offset()
        assert offset is not None
        yield offset


def _read(address: str, topic: str) -> Iterator[confluent_kafka.Message]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "not used",  # the library insists on a name
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        while (message := consumer.poll(_PATIENCE_S)) is not None and not is_at_end(message):
            yield message
        if message is None:
            raise TimeoutError(f"{topic}: no answer from {address} within {_PATIENCE_S} s")
    finally:
        consumer.close()


def read_last(address: str, topic: str) -> dict[str, Value]:
    """The last value of every key."""
    return dict(read_all(address, topic))


def value_of(message: confluent_kafka.Message) -> Value:
    """The object in a record; an empty one where there is none: anybody may write to a topic."""
    try:
        value = json.loads(message.value() or b"")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_at_end(message: confluent_kafka.Message) -> bool:
    """True if a consumer has reached the end for now; raises its errors."""
    problem = message.error()
    if problem is None:
        return False
    if problem.code() != confluent_kafka.KafkaError._PARTITION_EOF:
        raise confluent_kafka.KafkaException(problem)
    return True
