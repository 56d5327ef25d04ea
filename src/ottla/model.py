"""Types shared by all rooms: numbers with a kind, partitions, endpoints, ids."""

import base64
from dataclasses import dataclass
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)  # which record, counted from the start of a partition
Position = NewType("Position", int)  # which byte, counted from the start of a segment file
LeaderEpoch = NewType("LeaderEpoch", int)  # how often a partition's leadership has changed
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)  # number of a record among those of one producer in a partition
TimestampMs = NewType("TimestampMs", int)  # milliseconds since 1970-01-01 UTC
Uuid = NewType("Uuid", bytes)  # 16 raw bytes, as on the wire

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = ProducerId(-1)
MAPPED_IDS_FROM = 1 << 40  # from here on, ids of producers whose batches are forwarded
NO_SEQUENCE = Sequence(-1)
NO_TIMESTAMP = TimestampMs(-1)
NO_UUID = Uuid(bytes(16))

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicPartition(NamedTuple):
    """A partition of a topic; a tuple because it is looked up once per request."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A half-open range of offsets: `start` is inside, `end` is not."""

    start: Offset
    end: Offset

    def __post_init__(self) -> None:
        assert self.start <= self.end, f"a range ends before its start: {self}"

    def __len__(self) -> int:
        return self.end - self.start


class Endpoint(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Parse HOST:PORT, with brackets around an IPv6 address."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535 or not host:
            raise ValueError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:9092")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def topic_name_problem(name: str) -> str | None:
    """The reason why `name` is no valid topic name, or None if it is."""
    if not name:
        return "a topic name must not be empty"
    if name in {".", ".."}:
        return "a topic name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one {len(name)}"
    if not _TOPIC_CHARACTERS.issuperset(name):
        return "a topic name consists of ASCII letters, digits, '.', '_' and '-'"
    return None


def format_uuid(uuid: Uuid) -> str:
    """An id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).decode().rstrip("=")


def parse_uuid(text: str) -> Uuid:
    """The inverse of `format_uuid`."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not an id of 16 bytes in base64")
    return Uuid(raw)
