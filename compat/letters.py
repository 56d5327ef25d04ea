"""Records that can be told apart: made, sent, read, and their files moved."""

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT: Final = 1500
ABORTED: Final = b"aborted"
_FIRST_MS: Final = 1_700_000_000_000
_BATCH: Final = 50
_PATIENCE_S: Final = 120.0
_SEGMENT_BYTES: Final = 1 << 20  # the least that Apache Kafka allows


@dataclass(frozen=True, slots=True, order=True)
class Letter:
    """A record as its sender and its reader know it."""

    key: bytes
    value: bytes
    timestamp_ms: int


def letters(seed: str) -> Iterator[Letter]:
    """Always the same ones for a seed; enough for several segments of the least size."""
    rng = random.Random(seed)
    for number in range(COUNT):
        value = rng.randbytes(900) + b"." * rng.randrange(500, 1000)
        yield Letter(b"%s-%d" % (seed.encode(), number), value, _FIRST_MS + number)


def create_topic(address: str, name: str, **settings: object) -> None:
    config = {key.replace("_", "."): str(value) for key, value in settings.items()}
    ours = {"segment.bytes": str(_SEGMENT_BYTES), "retention.ms": "-1"}  # letters are old
    topic = NewTopic(name, 1, 1, config={**ours, **config})
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([topic]).values():
        made.result(_PATIENCE_S)


def send(
    address: str, topic: str, codec: str, wanted: list[Letter], *, plainly: bool = False
) -> None:
    """In many batches, each compressed; returns when all are acknowledged.

    Plainly is without a producer id: the files may know that of another cluster already.

    With aiokafka: librdkafka leaves out lz4 where no group coordinator is served.
    """
    asyncio.run(_send(address, topic, codec, wanted, is_idempotent=not plainly))


async def _send(
    address: str, topic: str, codec: str, wanted: list[Letter], *, is_idempotent: bool
) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=is_idempotent,
        acks="all",
        linger_ms=5,
    )
    async with producer:
        for first in range(0, len(wanted), _BATCH):
            sent = [
                await producer.send(
                    topic, one.value, one.key, partition=0, timestamp_ms=one.timestamp_ms
                )
                for one in wanted[first : first + _BATCH]
            ]
            await asyncio.gather(*sent)


def send_in_transactions(address: str, topic: str, codec: str, wanted: list[Letter]) -> None:
    """The letters, committed, with as many in between that are taken back."""
    settings = {"transactional.id": f"writer-of-{topic}", "compression.type": codec}
    producer: Any = Producer({"bootstrap.servers": address, "linger.ms": 5, **settings})
    producer.init_transactions(_PATIENCE_S)
    for first in range(0, len(wanted), _BATCH):
        producer.begin_transaction()
        _produce(producer, topic, [Letter(ABORTED, b"never", _FIRST_MS)] * 3)
        producer.abort_transaction(_PATIENCE_S)
        producer.begin_transaction()
        _produce(producer, topic, wanted[first : first + _BATCH])
        producer.commit_transaction(_PATIENCE_S)


def _produce(producer: Any, topic: str, wanted: list[Letter]) -> None:
    problems: list[Any] = []

    def told(problem: Any, _: Any) -> None:
        if problem is not None:
            problems.append(problem)

    for one in wanted:
        producer.produce(
            topic, one.value, one.key, timestamp=one.timestamp_ms, on_delivery=told, partition=0
        )
    assert producer.flush(_PATIENCE_S) == 0
    assert problems == []


def read_all(
    address: str, topic: str, *, isolation: str = "read_committed", count_min: int = 0
) -> list[Letter]:
    """Everything in the topic, from the beginning up to where it ends now.

    An end before `count_min` records is waited out: Apache Kafka listens before it has found its
    high watermarks again.
    """
    settings = {"group.id": "nobody", "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": address, "enable.partition.eof": True, **settings})
    beginning = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
    found = list[Letter]()
    with closing(consumer):
        consumer.assign([beginning])
        while (message := consumer.poll(_PATIENCE_S)) is not None:
            if (problem := message.error()) is not None:
                assert problem.code() == confluent_kafka.KafkaError._PARTITION_EOF
                if len(found) >= count_min:
                    return found
                continue
            key, value = message.key() or b"", message.value() or b""
            found.append(Letter(key, value, message.timestamp()[1]))
    raise AssertionError(f"{topic} did not come to an end after {len(found)} records")


def segment_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(file for file in directory.glob(f"*{suffix}") if file.stem.isdigit())


def adopt(source: Path, target: Path) -> None:
    """Give a partition's directory the files of another; it stays the partition that it is."""
    identity = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target)
    shutil.copytree(source, target)
    (target / "partition.metadata").write_bytes(identity)
