"""Settings that all clients of a run share, and threads that run until they are stopped."""

import threading
from abc import ABC, abstractmethod
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from crash.load import SILENT

TIMEOUT_S: Final = 60.0
# A request to a leader that hangs is repeated elsewhere when it has timed out. librdkafka waits for
# 30 s (produce) and 60 s unless it is set.
SETTINGS: Final = {
    "request.timeout.ms": 4_000,
    "socket.timeout.ms": 5_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 500,
    "metadata.recovery.strategy": "none",
    "logger": SILENT,
}


def error_of(problem: KafkaException) -> KafkaError:
    error = problem.args[0]
    assert isinstance(error, KafkaError)
    return error


class Worker(ABC):
    """A thread that does one thing again and again. An exception of it is a problem of the run."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.name = name
        self.is_over = threading.Event()
        self._problems = problems
        self._thread = threading.Thread(target=self._guard, name=name)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self.is_over.set()

    def join(self) -> None:
        self._thread.join()

    @abstractmethod
    def work(self) -> None:
        """Do it until `is_over`."""

    def _guard(self) -> None:
        try:
            self.work()
        except Exception as problem:  # noqa: BLE001  # the run reports it, with its history
            self._problems.append(f"client {self.name} died: {problem!r}")
