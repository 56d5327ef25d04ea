"""What is asked of a work queue, whatever the protocol."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bench.load import Job, Latency, Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Consumers of one queue; each receives and acknowledges `portion` messages at a time."""

    consumers: int
    portion: int

    def count_of(self, stock: int) -> int:
        """How many of `stock` messages are taken: so many that nobody waits for the last ones."""
        return stock - self.consumers * self.portion


class QueueLoad(Protocol):
    """One protocol's work queues, in one mode of durability, on one running server."""

    def queue(self, name: str) -> AbstractContextManager[None]:
        """A queue that exists while the block runs."""

    def fill(self, name: str, portion: int, job: Job) -> int:
        """Put messages, as many as `job` allows; returns how many are there."""

    def drain(self, name: str, crew: Crew, job: Job) -> Throughput:
        """Messages whose acknowledgement was answered, as fast as the consumers can."""

    def pace(self, name: str, rate: int, job: Job) -> Latency:
        """From the moment a message was due until its acknowledgement was answered."""


def unix_s() -> float:
    """The time of the machine's clock: delayed messages are due by it."""
    return time.time_ns() / 1e9
