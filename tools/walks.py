"""How many functions of ours one request enters, from the socket to its response.

    python -m tools.walks              print the walks
    python -m tools.walks -v           and the stops of each

A stop is a function that calls another one of ours. A hop is a call that the event loop makes, or a
thread that waits for work. Comprehensions, and what the codec compiles, are parts of the functions
that they stand in. Each walk is taken on a warm connection, and the shortest of some tries counts:
in others a timer of the broker came between. `tests/unit/test_walks.py` lets no walk become longer.
"""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from bench.produce_request import one_record_request
from bench.sockets import dial, receive_frame

from ottla import testing
from ottla.protocol.api import APIS, RequestHeader, key_of, parse_response_header, request_frame
from ottla.protocol.codec import decode
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

PACKAGE: Final = str(Path(testing.__file__).parent)
TOPIC: Final = "walks"
WARM_UP: Final = 5
TRIES: Final = 5
SETTLED_S: Final = 0.05


class Walk(NamedTuple):
    """What one request has entered."""

    stops: frozenset[CodeType]
    entered: frozenset[CodeType]
    hops: int

    @property
    def modules(self) -> int:
        return len({code.co_filename for code in self.entered})


class Recorder:
    """Notes calls of functions of ours on all threads while it `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self._begin()

    def _begin(self) -> None:
        self._callers = set[CodeType]()
        self._entered = set[CodeType]()
        self._hops = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_on or event != "call" or not _is_ours(frame):
            return
        self._entered.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is None or caller.f_code not in self._entered:
            self._hops += 1
        else:
            self._callers.add(caller.f_code)

    def record(self, request: Callable[[], None]) -> Walk:
        self._begin()
        self.is_on = True
        request()
        time.sleep(SETTLED_S)  # for what is done behind the response, such as a high watermark
        self.is_on = False
        return Walk(frozenset(self._callers), frozenset(self._entered), self._hops)


def _is_ours(frame: FrameType) -> bool:
    code = frame.f_code
    is_product = code.co_filename.startswith(PACKAGE) and code.co_filename != testing.__file__
    return is_product and not code.co_name.endswith(("comp>", "<genexpr>"))


class Client:
    """Requests on one connection, in turn."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, request: object, version: int) -> None:
        header = RequestHeader(key_of(type(request)), version, 1, "walks")
        self.connection.sendall(request_frame(header, request))

    def ask(self, request: object, version: int) -> object:
        self.send(request, version)
        key, frame = key_of(type(request)), receive_frame(self.connection)
        _, position = parse_response_header(key, version, frame)
        return decode(APIS[key].response_class, version, frame, position)


class Walks:
    """The walks; each is a request that can be repeated."""

    def __init__(self, client: Client, other: Client) -> None:
        self._client = client
        self._other = other
        self._one_record = one_record_request(TOPIC, bytes(100), acks=-1)
        self._end = 0

    def prepare(self) -> None:
        """Have the topic and the groups' topic made."""
        topic = MetadataRequestTopic(name=TOPIC)
        self._client.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 9)
        self._client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["walks"]), 4)

    def produce(self) -> None:
        self._produce(self._client)

    def _produce(self, client: Client) -> None:
        client.connection.sendall(self._one_record)
        frame = receive_frame(client.connection)
        (self._end,) = struct.unpack_from(">q", frame, 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4 + 2)
        self._end += 1

    def fetch(self) -> None:
        """A fetch that waits, and the record that wakes it."""
        partition = FetchPartition(partition=0, fetch_offset=self._end, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic=TOPIC, partitions=[partition])
        self._client.send(FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=[topic]), 12)
        time.sleep(SETTLED_S)  # it is to wait when the record comes
        self._produce(self._other)
        receive_frame(self._client.connection)

    def commit(self) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=self._end, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        self._client.ask(OffsetCommitRequest(group_id="walks", topics=[topic]), 9)


@contextmanager
def _walks(recorder: Recorder) -> Iterator[Walks]:
    threading.setprofile(recorder)
    try:
        with testing.broker() as address:
            port = int(address.rpartition(":")[2])
            with closing(dial(port)) as connection, closing(dial(port)) as other:
                walks = Walks(Client(connection), Client(other))
                walks.prepare()
                yield walks
    finally:
        threading.setprofile(None)


def take_walks() -> dict[str, Walk]:
    """Start a broker, and take each walk."""
    recorder = Recorder()
    with _walks(recorder) as walks:
        return {
            "Produce of one batch, acks=all, fsync": _shortest(recorder, walks.produce),
            "Fetch that waits, and the Produce that wakes it": _shortest(recorder, walks.fetch),
            "OffsetCommit, fsync": _shortest(recorder, walks.commit),
        }


def _shortest(recorder: Recorder, request: Callable[[], None]) -> Walk:
    for _ in range(WARM_UP):
        request()
    return min((recorder.record(request) for _ in range(TRIES)), key=lambda one: len(one.entered))


def main() -> int:
    print(f"{'':48}  stops  entered  modules  hops")
    for name, walk in take_walks().items():
        counts = f"{len(walk.stops):7} {len(walk.entered):8} {walk.modules:8} {walk.hops:5}"
        print(f"{name:48}{counts}")
        if "-v" in sys.argv:
            for code in sorted(walk.stops, key=lambda one: (one.co_filename, one.co_qualname)):
                print(f"    {code.co_filename[len(PACKAGE) + 1 :]} {code.co_qualname}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
