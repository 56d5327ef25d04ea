"""An ordinary client that goes on working while others attack."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from hostile.attacked_broker import PATIENCE_S, AttackedBroker, wait_until

_PAUSE_S = 0.02
_numbers = itertools.count()


class ControlClient:
    """Produces a record, reads it back, and again, until it is told to stop."""

    def __init__(self, broker: AttackedBroker) -> None:
        self.topic = f"control-{next(_numbers)}"
        self._producer = Producer(
            {"bootstrap.servers": broker.address, "linger.ms": 0, "log_level": 0}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="control")
        self.round_trips_s: list[float] = []

    def start(self) -> None:
        self._round_trip(0)  # creates the topic
        self._consumer.assign([TopicPartition(self.topic, 0, 1)])
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        self._producer.close()
        if self._failure is not None:
            raise AssertionError("the control client was not served") from self._failure
        assert self.round_trips_s, "the control client never came to its turn"

    def figures(self) -> str:
        """How long its round trips took: for people to read, never to decide a test."""
        times_ms = sorted(took_s * 1000 for took_s in self.round_trips_s)
        middle, late = times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100]
        return (
            f"control client: {len(times_ms)} round trips, p50 {middle:.1f} ms,"
            f" p99 {late:.1f} ms, slowest {times_ms[-1]:.1f} ms"
        )

    def wait_round_trips(self, count: int) -> None:
        """Returns when it has been served so many times more."""
        wanted = len(self.round_trips_s) + count
        wait_until(lambda: self._failure is not None or len(self.round_trips_s) >= wanted)

    def _run(self) -> None:
        try:
            number = 1
            while not self._stopping.is_set():
                started_s = time.perf_counter()
                self._round_trip(number)
                self._read_back(number)
                self.round_trips_s.append(time.perf_counter() - started_s)
                number += 1
                self._stopping.wait(_PAUSE_S)
        except BaseException as problem:  # noqa: BLE001  # it is raised again by `stop`
            self._failure = problem

    def _round_trip(self, number: int) -> None:
        failures: list[object] = []
        self._producer.produce(
            self.topic,
            str(number).encode(),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert self._producer.flush(PATIENCE_S) == 0
        assert not failures, failures

    def _read_back(self, number: int) -> None:
        message = self._consumer.poll(PATIENCE_S)
        assert message is not None, "nothing came back"
        assert message.error() is None, message.error()
        assert message.value() == str(number).encode()


@contextmanager
def served_throughout(broker: AttackedBroker) -> Iterator[ControlClient]:
    """Fails when an ordinary client could not produce and fetch all the time within.

    All the time: no produce and no fetch of it took longer than our patience.
    """
    client = ControlClient(broker)
    client.start()
    try:
        yield client
    finally:
        client.stop()
