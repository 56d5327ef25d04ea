"""What the tests ask of a client, whoever made it: one behaviour, written once, run with each."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from ottla.errors import ErrorCode

PATIENCE_S: Final = 120  # for what hangs, never a decision; librdkafka itself tries again after 60
BEGINNING: Final = "beginning"
END: Final = "end"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_LOG_APPEND_TIME: Final = 1
_CODES: Final = frozenset(map(int, ErrorCode))

Start = int | str  # an offset, BEGINNING or END
MakeTopic = Callable[..., str]  # how many partitions, then settings with _ for dots
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record as a producer is given it."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A record as a consumer hands it over."""

    partition: int
    offset: int
    timestamp_ms: int
    is_log_append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


def received(message: Any) -> Received:
    """A record of aiokafka or kafka-python, which have the same names for what it has."""
    return Received(
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=message.timestamp,
        is_log_append_time=message.timestamp_type == _LOG_APPEND_TIME,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
    )


class Refused(Exception):
    """The broker said no, and the client told its user this code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{code}: {text}")
        self.code = ErrorCode(code) if code in _CODES else code


class Producer(Protocol):
    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        """Send all, wait for all acknowledgements; their offsets, or Refused."""


class Consumer(Protocol):
    def take(self, count: int) -> list[Received]:
        """Wait for this many more records."""


class Admin(Protocol):
    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None: ...

    def validate_topic(self, name: str, partitions: int) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def add_partitions(self, name: str, total: int) -> None: ...

    def topics(self) -> set[str]: ...

    def partition_count(self, name: str) -> int: ...

    def config(self, name: str) -> dict[str, str]: ...

    def change_config(self, name: str, changes: Mapping[str, str]) -> None: ...

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        """Delete what is below `offset`; the first offset that is left."""

    def cluster(self) -> tuple[str, dict[int, str]]:
        """The cluster's id, and the address of each broker."""


class Client(ABC):
    """One client library or program; each thing it makes is closed when its block ends."""

    name: ClassVar[str]
    tells_offsets: ClassVar[bool] = True  # whether a producer learns where its records went

    def __init__(self, address: str) -> None:
        self.address = address

    def can_send(self, record: Sent) -> bool:
        """Whether the client lets such a record pass at all."""
        return True

    @abstractmethod
    def producer(
        self, *, acks: int = -1, codec: str = "none", idempotent: bool = False
    ) -> AbstractContextManager[Producer]: ...

    @abstractmethod
    def consumer(
        self,
        topic: str,
        starts: Mapping[int, Start],
        *,
        reset: str = "error",
        read_committed: bool = False,
        wait_ms: int = 500,
    ) -> AbstractContextManager[Consumer]:
        """Reads partitions from where `starts` says; `reset` is auto.offset.reset."""

    @abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older, if there is one."""

    def produce(
        self,
        topic: str,
        *records: Sent,
        acks: int = -1,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        with self.producer(acks=acks, codec=codec, idempotent=idempotent) as producer:
            return producer.send(topic, records)

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: Start = BEGINNING,
        read_committed: bool = False,
    ) -> list[Received]:
        with self.consumer(topic, {partition: start}, read_committed=read_committed) as consumer:
            return consumer.take(count)


class Library(Client):
    """A client that is called from Python, and has an admin side."""

    @abstractmethod
    def admin(self) -> Admin: ...


def collect(count: int, poll: Callable[[int], Sequence[Received]]) -> list[Received]:
    """Ask `poll` for what is missing until `count` records are there."""
    found: list[Received] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"only {len(found)} of {count} records came"
        found += poll(count - len(found))
    return found


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Ask again and again; patience is only for a broker or client that hangs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline_s, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.01)
