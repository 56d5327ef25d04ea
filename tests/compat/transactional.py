"""Transactional producers of every library behind one face, and what the tests look at."""

import asyncio
import contextlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn, Protocol

import aiokafka
import confluent_kafka
from aiokafka.errors import InvalidProducerEpoch as AioInvalidEpoch
from aiokafka.errors import KafkaError as AioError
from aiokafka.errors import ProducerFenced as AioFenced
from confluent_kafka import KafkaError, KafkaException

from compat.adapter import PATIENCE_S

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files the old way
    import kafka
    from kafka.errors import InvalidProducerEpochError, ProducerFencedError
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.structs import OffsetAndMetadata as KafkaPythonOffset

Partition = tuple[str, int]


class Fenced(Exception):
    """Another producer with the same transactional id has taken over."""


class Failed(Exception):
    """The transaction did not end as it should, for any other reason."""


class Transactional(Protocol):
    """A producer that has found its coordinator and has no transaction open."""

    def begin(self) -> None: ...

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Send and wait until the broker has all of it."""

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class _Confluent:
    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._address = address
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "reconnect.backoff.max.ms": 200,
                # librdkafka 2.16 may go on waiting for a coordinator that was down for a moment.
                "metadata.recovery.strategy": "none",
                "linger.ms": 1,
            }
        )
        self._call(self._producer.init_transactions, PATIENCE_S)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        # No delivery reports: librdkafka's binding cannot have one fail together with `flush`.
        for value in values:
            self._call(
                lambda value=value: self._producer.produce(
                    topic, value, key=value[:8], partition=partition
                )
            )
        self._call(self._producer.flush, PATIENCE_S)

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._address, "group.id": group, "enable.auto.commit": False}
        )
        try:
            places = [
                confluent_kafka.TopicPartition(topic, partition, at)
                for (topic, partition), at in offsets.items()
            ]
            metadata = consumer.consumer_group_metadata()
            self._call(self._producer.send_offsets_to_transaction, places, metadata, PATIENCE_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(KafkaException):  # a fatal error is raised again and again
            self._producer.flush(1)

    def _call(self, act: Any, *arguments: Any) -> None:
        try:
            act(*arguments)
        except KafkaException as failure:
            _refuse_confluent(failure.args[0])
        except SystemError as failure:  # how the binding words a fatal error inside of `flush`
            if not isinstance(failure.__cause__, KafkaException):
                raise
            _refuse_confluent(failure.__cause__.args[0])


def _refuse_confluent(error: KafkaError) -> NoReturn:
    fenced = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
    raise Fenced(str(error)) if error.code() in fenced else Failed(str(error))


class _Aiokafka:
    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._run(self._start(address, transactional_id, timeout_ms))

    async def _start(self, address: str, transactional_id: str, timeout_ms: int) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=1,
        )
        await producer.start()
        return producer

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def send() -> None:
            waiting = [
                await self._producer.send(topic, value, key=value[:8], partition=partition)
                for value in values
            ]
            await asyncio.gather(*waiting)

        self._run(send())

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        places = {aiokafka.TopicPartition(*tp): at for tp, at in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run_until_complete(self._producer.stop())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        # aiokafka drops the error of a producer that was replaced in a future. The collector finds
        # it in the middle of another test; the traceback that would be logged there is made with
        # `ast`, which CPython 3.11 cannot do while the same thread is in `ast`.
        self._loop.set_exception_handler(lambda _, context: None)
        self._loop.close()

    def _run(self, work: Any) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))
        except (AioFenced, AioInvalidEpoch) as failure:
            raise Fenced(repr(failure)) from failure
        except AioError as failure:
            raise Failed(repr(failure)) from failure


class _KafkaPython:
    def __init__(self, address: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=1,
            delivery_timeout_ms=PATIENCE_S * 1000,
            request_timeout_ms=10_000,
            max_block_ms=PATIENCE_S * 1000,
            reconnect_backoff_max_ms=200,
            metrics_enabled=False,
        )
        self._call(self._producer.init_transactions)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        def send() -> None:
            futures = [
                self._producer.send(topic, value, key=value[:8], partition=partition)
                for value in values
            ]
            for future in futures:
                future.get(PATIENCE_S)

        self._call(send)

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        places = {
            kafka.TopicPartition(*tp): KafkaPythonOffset(at, "", -1) for tp, at in offsets.items()
        }
        self._call(self._producer.send_offsets_to_transaction, places, group)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=10)  # sockets stay open as long as its thread runs

    def _call(self, act: Any, *arguments: Any) -> None:
        try:
            act(*arguments)
        except (ProducerFencedError, InvalidProducerEpochError) as failure:
            raise Fenced(repr(failure)) from failure
        except KafkaPythonError as failure:
            raise Failed(repr(failure)) from failure


TRANSACTIONAL: Final[dict[str, type[_Confluent] | type[_Aiokafka] | type[_KafkaPython]]] = {
    "confluent": _Confluent,
    "kafka-python": _KafkaPython,
    "aiokafka": _Aiokafka,
}


def transactional(
    library: str, address: str, transactional_id: str, *, timeout_ms: int = 60_000
) -> AbstractContextManager[Transactional]:
    """A producer of this library; whatever it leaves open when its block ends stays open."""

    @contextmanager
    def made() -> Iterator[Transactional]:
        producer = TRANSACTIONAL[library](address, transactional_id, timeout_ms)
        try:
            yield producer
        finally:
            producer.close()

    return made()
