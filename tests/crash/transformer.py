"""A program that reads, transforms and writes exactly once, until somebody kills it.

Run as `python transformer.py <settings as JSON>`. Every record it reads becomes one record that
says where it came from, which transaction wrote it and how many the transaction wrote. What it
is about to do and has done goes to its journal first, one line each; that file survives a
`kill -9`, so a judge knows afterwards which transactions may be there and which must be.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException, Message

OUTPUT_PARTITIONS: Final = 3
_PATIENCE_S: Final = 20
_GIVES_UP: Final = 3  # exit status: start me again
# librdkafka 2.16 can wait for ever in send_offsets_to_transaction when the transaction fails
# meanwhile, whatever its timeout says: then the alarm ends the process.
_HANG_S: Final = 40
# And it forgets a broker that was the only one and went down, to look for it anew; now and then
# it goes on waiting for the coordinator that it forgot.
_STEADY: Final = {"metadata.recovery.strategy": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Who it is, what it reads and writes, and how."""

    client: str
    address: str
    name: str  # transactional id
    incarnation: int
    group: str
    source: str
    partitions: list[int]  # that it reads, for a client that cannot be fenced by its generation
    target: str
    journal: str
    timeout_ms: int
    records_max: int
    abort_share: float
    seed: int


class Place(NamedTuple):
    """A record that was read."""

    partition: int
    offset: int


class Journal:
    """What became of each transaction, in words that are on their way to the disk before the act.

    `commit` stands before the request, `committed` and `aborted` behind the answer.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, word: str, transaction: str) -> None:
        os.write(self._file, f"{word} {transaction}\n".encode())


def transformed(source: str, place: Place, transaction: str, size: int) -> bytes:
    return f"{source}/{place.partition}/{place.offset} {transaction} {size}".encode()


def _target_partition(place: Place) -> int:
    return (place.partition + place.offset) % OUTPUT_PARTITIONS


class Worker:
    """What both loops share: names, chance, the journal."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.journal = Journal(Path(settings.journal))
        self._rng = Random(f"{settings.seed} {settings.name} {settings.incarnation}")
        self._count = 0

    def begin(self) -> str:
        self._count += 1
        return f"{self.settings.name}.{self.settings.incarnation}.{self._count}"

    def records_max(self) -> int:
        return self._rng.randint(1, self.settings.records_max)

    def wants_abort(self) -> bool:
        return self._rng.random() < self.settings.abort_share


# librdkafka: the group says which partitions are whose, and fences by generation (KIP-447)


def run_confluent(worker: Worker) -> None:
    settings = worker.settings
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": settings.address,
            "transactional.id": settings.name,
            "transaction.timeout.ms": settings.timeout_ms,
            "linger.ms": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            **_STEADY,
        }
    )
    producer.init_transactions(_PATIENCE_S)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": settings.address,
            "group.id": settings.group,
            # Its next incarnation has its partitions at once, and a zombie is fenced here too.
            "group.instance.id": settings.name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": settings.timeout_ms,
            "max.poll.interval.ms": max(settings.timeout_ms, 30_000),
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 20,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            **_STEADY,
        }
    )
    consumer.subscribe([settings.source])
    while True:
        signal.alarm(_HANG_S)
        messages = _read(consumer, worker.records_max())
        # Nobody else gets these partitions before the next poll: what was aborted is done again.
        while messages and not _transform(worker, producer, consumer, messages):
            pass


def _read(consumer: confluent_kafka.Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    for message in consumer.consume(count, timeout=0.2):
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.fatal():
            raise KafkaException(error)  # another one has its name
    return messages


def _transform(
    worker: Worker,
    producer: confluent_kafka.Producer,
    consumer: confluent_kafka.Consumer,
    messages: Sequence[Message],
) -> bool:
    """One transaction; False if chance had it aborted."""
    settings = worker.settings
    transaction = worker.begin()
    try:
        producer.begin_transaction()
        for message in messages:
            place = _place(message)
            value = transformed(settings.source, place, transaction, len(messages))
            producer.produce(settings.target, value, partition=_target_partition(place))
        producer.send_offsets_to_transaction(
            _offsets(settings.source, messages),
            consumer.consumer_group_metadata(),
            _PATIENCE_S,
        )
        if worker.wants_abort():
            producer.abort_transaction(_PATIENCE_S)
            worker.journal.note("aborted", transaction)
            return False
        worker.journal.note("commit", transaction)
        producer.commit_transaction(_PATIENCE_S)
    except KafkaException as failure:
        if failure.args[0].txn_requires_abort():
            producer.abort_transaction(_PATIENCE_S)
            worker.journal.note("aborted", transaction)
        raise  # the next incarnation finds out how far it was read
    worker.journal.note("committed", transaction)
    return True


def _place(message: Message) -> Place:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Place(partition, offset)


def _offsets(source: str, messages: Sequence[Message]) -> list[confluent_kafka.TopicPartition]:
    ends: dict[int, int] = {}
    for place in map(_place, messages):
        ends[place.partition] = max(ends.get(place.partition, 0), place.offset + 1)
    return [confluent_kafka.TopicPartition(source, *end) for end in ends.items()]


# aiokafka: it cannot say which generation it is of, so its partitions go with its name


async def run_aiokafka(worker: Worker) -> None:
    settings = worker.settings
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=settings.address,
        transactional_id=settings.name,
        transaction_timeout_ms=settings.timeout_ms,
        linger_ms=0,
        retry_backoff_ms=20,
    )
    await producer.start()  # nothing that was begun under this name is open any more
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=settings.address,
        group_id=settings.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
        retry_backoff_ms=20,
    )
    await consumer.start()
    places = [aiokafka.TopicPartition(settings.source, index) for index in settings.partitions]
    consumer.assign(places)
    while True:
        found = await consumer.getmany(timeout_ms=200, max_records=worker.records_max())
        records = [record for some in found.values() for record in some]
        if records and not await _transform_async(worker, producer, records):
            for tp, some in found.items():
                if some:
                    consumer.seek(tp, some[0].offset)


async def _transform_async(worker: Worker, producer: Any, records: Sequence[Any]) -> bool:
    settings = worker.settings
    transaction = worker.begin()
    await producer.begin_transaction()
    sent = []
    for record in records:
        place = Place(record.partition, record.offset)
        value = transformed(settings.source, place, transaction, len(records))
        sent.append(await producer.send(settings.target, value, partition=_target_partition(place)))
    await asyncio.gather(*sent)
    offsets: dict[aiokafka.TopicPartition, int] = {}
    for record in records:
        offsets[aiokafka.TopicPartition(record.topic, record.partition)] = record.offset + 1
    await producer.send_offsets_to_transaction(offsets, settings.group)
    if worker.wants_abort():
        await producer.abort_transaction()
        worker.journal.note("aborted", transaction)
        return False
    worker.journal.note("commit", transaction)
    await producer.commit_transaction()
    worker.journal.note("committed", transaction)
    return True


def main() -> int:
    worker = Worker(Settings(**json.loads(sys.argv[1])))
    try:
        if worker.settings.client == "confluent":
            run_confluent(worker)
        else:
            asyncio.run(run_aiokafka(worker))
    except (KafkaException, AioError, OSError, TimeoutError) as failure:
        sys.stderr.write(f"{failure!r}\n")
        os._exit(_GIVES_UP)  # as it is: what is open is for the next incarnation to abort
    return 0


if __name__ == "__main__":
    sys.exit(main())
