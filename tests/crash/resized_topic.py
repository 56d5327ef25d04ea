"""Producers and groups of three libraries, for a topic whose number of partitions changes."""

import asyncio
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError as AiokafkaCommitFailed
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files the old way
    from kafka import KafkaConsumer
    from kafka.errors import CommitFailedError, RebalanceInProgressError

TOPIC = "orders"
GROUPS = ("confluent", "kafka-python", "aiokafka")
_REFRESH_MS = 300  # how soon clients learn of other partitions
_JOIN_MS = 10_000
_KEYS = 97
_PAUSE_S = 0.01
_REBALANCING = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
)


class Clients:
    """Threads that write and read until `stop`; a failure of any of them is raised there."""

    def __init__(self, bootstrap: str, groups: Sequence[str] = GROUPS) -> None:
        self.bootstrap = bootstrap
        self._groups = groups
        self.sent = Counter[str]()  # acknowledged values
        self.sent_to = Counter[int]()  # the partitions that producers chose
        self.errors: list[str] = []
        self.read: dict[str, Counter[str]] = {}  # values by group
        self._is_stopping = threading.Event()
        self._have_all = threading.Event()
        self._producers: list[Future[None]] = []
        self._consumers: list[Future[None]] = []

    def start(self) -> None:
        self._producers = [
            _run(lambda: self._produce("keyed", {})),
            _run(lambda: self._produce("idempotent", {"enable.idempotence": True})),
            _run(lambda: self._produce("transactional", {"transactional.id": "orders"})),
        ]
        readers: dict[str, Callable[[Counter[str]], None]] = {
            "confluent": self._read_with_confluent,
            "kafka-python": self._read_with_kafka_python,
            "aiokafka": self._read_with_aiokafka,
        }
        for group in self._groups:
            reader = readers[group]
            self.read[group] = Counter()
            self._consumers.append(_run(lambda r=reader, g=group: r(self.read[g])))  # type: ignore[misc]

    def check(self) -> None:
        """Raise the failure of a client, if one has failed."""
        for client in (*self._producers, *self._consumers):
            if client.done():
                client.result()
        assert not self.errors, self.errors[:5]

    def stop_producers(self, timeout_s: float) -> None:
        self._is_stopping.set()
        for producer in self._producers:
            producer.result(timeout_s)

    def stop_consumers(self, timeout_s: float) -> None:
        self._have_all.set()
        for consumer in self._consumers:
            consumer.result(timeout_s)

    # Producers

    def _produce(self, name: str, options: dict[str, str | bool]) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "topic.metadata.refresh.interval.ms": _REFRESH_MS,
                "linger.ms": 5,
                **options,
            }
        )
        in_transactions = "transactional.id" in options
        if in_transactions:
            producer.init_transactions()
        number = 0
        while not self._is_stopping.wait(_PAUSE_S):
            if in_transactions:
                producer.begin_transaction()
            for _ in range(5):
                number += 1
                key, value = f"key-{number % _KEYS}", f"{name}-{number}"
                producer.produce(TOPIC, value.encode(), key.encode(), on_delivery=self._note)
            producer.poll(0)
            if in_transactions:
                producer.commit_transaction()
        producer.flush()

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.sent[(message.value() or b"").decode()] += 1
        self.sent_to[message.partition() or 0] += 1

    # Groups: each commits what it has read before it reads on, so nothing is read twice. If it
    # cannot, because the group rebalances, it gets the same records again, and they count then.

    def _read_with_confluent(self, read: Counter[str]) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "confluent",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": _REFRESH_MS,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._have_all.is_set():
            messages = consumer.consume(500, 0.1)
            for message in messages:
                problem = message.error()
                assert problem is None, problem
            if not messages:
                continue
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as refused:
                if refused.args[0].code() not in _REBALANCING:
                    raise
                continue
            read.update((message.value() or b"").decode() for message in messages)
        consumer.close()

    def _read_with_kafka_python(self, read: Counter[str]) -> None:
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=self.bootstrap.split(","),
            group_id="kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            metadata_max_age_ms=_REFRESH_MS,
        )
        while not self._have_all.is_set():
            # A poll that ends between the responses to JoinGroup and SyncGroup leaves kafka-python
            # 3.0.12 outside of its group, with commits that fail, until metadata change again: its
            # leader has noted the new partitions by then, so `need_rejoin` is false, and nobody
            # awaits the join. Hence polls are long enough for a join on a busy machine.
            found = consumer.poll(_JOIN_MS)
            if not found:
                continue
            try:
                consumer.commit()
            except (CommitFailedError, RebalanceInProgressError):
                # It keeps the positions of partitions that it had before the rebalance.
                for partition in consumer.assignment() & found.keys():
                    consumer.seek(partition, found[partition][0].offset)
                continue
            for records in found.values():
                read.update(record.value.decode() for record in records)
        consumer.close()

    def _read_with_aiokafka(self, read: Counter[str]) -> None:
        async def run() -> None:
            consumer = AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=self.bootstrap,
                group_id="aiokafka",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                metadata_max_age_ms=_REFRESH_MS,
            )
            await consumer.start()
            try:
                while not self._have_all.is_set():
                    found = await consumer.getmany(timeout_ms=100)
                    if not found:
                        continue
                    try:
                        await consumer.commit()
                    except AiokafkaCommitFailed:
                        continue
                    for records in found.values():
                        read.update((record.value or b"").decode() for record in records)
            finally:
                await consumer.stop()

        asyncio.run(run())


def _run(work: Callable[[], None]) -> "Future[None]":
    """Run `work` in a thread of its own."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as problem:  # noqa: BLE001  # it is raised again in the test
            done.set_exception(problem)
        else:
            done.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return done
