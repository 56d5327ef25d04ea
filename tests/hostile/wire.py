"""The wire by hand: frames as they are, also those that no client sends."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from fakes.layouts import Layout
from hostile.attacked_broker import AttackedBroker
from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.protocol.api import (
    APIS,
    ApiKey,
    RequestHeader,
    key_of,
    parse_response_header,
    request_frame,
)
from ottla.protocol.codec import decode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

CLIENT_ID: Final = "hostile"
API_VERSIONS_V0: Final = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 7, -1)


def framed(payload: bytes) -> bytes:
    """A payload behind its true length."""
    return struct.pack(">i", len(payload)) + payload


def request_bytes(request: Any, version: int, correlation_id: int = 1) -> bytes:
    """A whole request as a well-behaved client sends it."""
    header = RequestHeader(key_of(type(request)), version, correlation_id, CLIENT_ID)
    return bytes(request_frame(header, request))


@dataclass(slots=True)
class RawClient:
    """One connection, used byte by byte."""

    socket: socket.socket
    correlation_id: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, payload: bytes) -> None:
        """Send all of it; a broker that has closed meanwhile is no reason to fail here."""
        try:
            self.socket.sendall(payload)
        except (BrokenPipeError, ConnectionResetError):
            return

    def read_answer(self) -> bytes | None:
        """The next whole answer without its length, or None when the broker has closed."""
        head = self._read(4)
        return None if head is None else self._read(int.from_bytes(head, "big"))

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    @property
    def is_closed_by_broker(self) -> bool:
        """Waits for the end of the stream, or for an answer."""
        return self.read_answer() is None

    def send_request(self, request: Any, version: int) -> None:
        self.correlation_id += 1
        self.send(request_bytes(request, version, self.correlation_id))

    def ask(self, request: Any, version: int) -> Any:
        """Send a request and decode its answer."""
        self.send_request(request, version)
        answer = self.read_answer()
        assert answer is not None, "the broker closed the connection"
        key = key_of(type(request))
        correlation_id, position = parse_response_header(key, version, answer)
        assert correlation_id == self.correlation_id
        return decode(APIS[key].response_class, version, answer, position)


@contextmanager
def raw_client(broker: AttackedBroker) -> Iterator[RawClient]:
    with RawClient(broker.connect()) as client:
        yield client


def served_layouts(broker: AttackedBroker) -> list[Layout]:
    """Every request that the broker says it serves, in every version that we can write."""
    with raw_client(broker) as client:
        # As our own client, which is told of our own request too.
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
        table = client.ask(request, 4).api_keys
    return [
        Layout(APIS[one.api_key].request_class, version)
        for one in table
        for version in APIS[one.api_key].versions
        if one.min_version <= version <= one.max_version
    ]


def create_topic(broker: AttackedBroker, name: str, **settings: str) -> None:
    """Make a topic of one partition; it may exist."""
    configs = [
        CreatableTopicConfig(name=setting.replace("_", "."), value=value)
        for setting, value in settings.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    with raw_client(broker) as client:
        answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
    assert answer.topics[0].error_code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}


def produce_request(tp: TopicPartition, batch: bytes | None, acks: int = -1) -> ProduceRequest:
    """One batch, or whatever stands in its place, for one partition."""
    data = PartitionProduceData(index=tp.partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
    )


def fetch_request(tp: TopicPartition, offset: int, **fields: Any) -> FetchRequest:
    """A fetch of one partition by its name (up to version 12)."""
    partition = FetchPartition(
        partition=tp.partition, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    wanted = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return FetchRequest(topics=[FetchTopic(topic=tp.topic, partitions=[partition])], **wanted)
