"""Members of a share group on raw sockets: joined in Python, then driven by `native/queue.c`."""

import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, TypeVar

from bench.kafka_load import KafkaLoad
from bench.load import LoadFailed, Wire
from bench.sockets import receive_frame
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.api import RequestHeader, key_of, parse_response_header, request_frame
from ottla.protocol.codec import decode
from ottla.protocol.messages.coordination import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

VERSION: Final = 1  # of all requests of share groups
FIND_VERSION: Final = 6
FETCH_ID: Final = 1  # correlation ids, as FETCHED and ACKNOWLEDGED of queue.c
ACKNOWLEDGE_ID: Final = 2
JOIN_S: Final = 30.0
BEAT_S: Final = 0.05
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 1 << 20
ACCEPT: Final = 1
EPOCH_MARK: Final = 0x5EA5_0E0C  # stand in templates where the load program writes
OFFSET_MARK: Final = 0x5EA5_0FF5_E70F_F5E7
NOT_YET: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}

Answer = TypeVar("Answer")


class ShareWires(NamedTuple):
    """Sockets of members, and where the load program writes into their frames."""

    wires: list[Wire]
    positions: tuple[int, ...]


class _Member:
    """A member of a share group, on a connection of its own."""

    def __init__(self, connection: socket.socket, group: str, topic: str) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.id = secrets.token_hex(16)
        self.epoch = 0
        self.topic_id: Uuid | None = None  # once the member has its partition

    def find_coordinator(self) -> ErrorCode:
        """Ask for the coordinator, which is on the only broker: that makes the group's topics."""
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        answer = _ask(self.connection, request, FIND_VERSION, FindCoordinatorResponse)
        return ErrorCode(answer.coordinators[0].error_code)

    def beat(self) -> ErrorCode:
        """Join, or stay; notes the assignment."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            subscribed_topic_names=[self.topic] if self.epoch == 0 else None,
        )
        answer = _ask(self.connection, request, VERSION, ShareGroupHeartbeatResponse)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            for assigned in answer.assignment.topic_partitions:
                self.topic_id = assigned.topic_id
        return ErrorCode.NONE

    def fetch(self, records_max: int, batches: Sequence[AcknowledgementBatch] = ()) -> bytes:
        """The frame of a ShareFetch of the only partition."""
        assert self.topic_id is not None, "the member has its partition"
        partition = ShareFetchPartition(partition_index=0, acknowledgement_batches=list(batches))
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=EPOCH_MARK,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            max_records=records_max,
            batch_size=records_max,
            topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=[partition])],
        )
        return _frame(request, VERSION, FETCH_ID)

    def acknowledge(self, batches: Sequence[AcknowledgementBatch]) -> bytes:
        """The frame of a ShareAcknowledge for the only partition."""
        assert self.topic_id is not None, "the member has its partition"
        partition = ShareAcknowledgePartition(
            partition_index=0, acknowledgement_batches=list(batches)
        )
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=EPOCH_MARK,
            topics=[ShareAcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])],
        )
        return _frame(request, VERSION, ACKNOWLEDGE_ID)


@contextmanager
def draining(load: KafkaLoad, topic: str, members: int, portion: int) -> Iterator[ShareWires]:
    """Members whose every fetch acknowledges what the one before has brought."""
    with _joined(load, topic, members) as joined:
        wires = [
            Wire(one.connection, one.fetch(portion), one.fetch(portion, [_accepted()]))
            for one in joined
        ]
        yield ShareWires(wires, _positions(wires[0]))


@contextmanager
def pacing(load: KafkaLoad, topic: str, portion: int) -> Iterator[ShareWires]:
    """One member that acknowledges in a request of its own, with a fetch behind it."""
    with _joined(load, topic, 1) as (one,):
        fetch = one.fetch(portion)
        wire = Wire(one.connection, fetch, one.acknowledge([_accepted()]) + fetch)
        yield ShareWires([wire], _positions(wire))


@contextmanager
def _joined(load: KafkaLoad, topic: str, members: int) -> Iterator[list[_Member]]:
    """Members of the group that has the topic's name, each with the topic's only partition."""
    with ExitStack() as opened:
        joined = [
            _Member(opened.enter_context(load.connect()), topic, topic) for _ in range(members)
        ]
        _wait_until(lambda: _is_done(joined[0].find_coordinator()))
        _wait_until(lambda: _have_partition(joined))
        yield joined


def _have_partition(members: Sequence[_Member]) -> bool:
    """Have all of them send a heartbeat; True if each has its partition."""
    done = [_is_done(member.beat()) and member.topic_id is not None for member in members]
    return all(done)


def _is_done(code: ErrorCode) -> bool:
    """False while there is no coordinator yet."""
    if code and code not in NOT_YET:
        raise LoadFailed(f"a member of a share group got {code.name}")
    return not code


def _wait_until(attempt: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + JOIN_S
    while not attempt():
        if time.monotonic() > deadline_s:
            raise LoadFailed("not every member of a share group has joined in time")
        time.sleep(BEAT_S)


def _accepted() -> AcknowledgementBatch:
    return AcknowledgementBatch(
        first_offset=OFFSET_MARK, last_offset=OFFSET_MARK, acknowledge_types=[ACCEPT]
    )


def _positions(wire: Wire) -> tuple[int, ...]:
    """EPOCH_AT, NEXT_EPOCH_AT, FIRST_AT and LATER_EPOCH_AT of queue.c; 0 without a second epoch."""
    epoch, offset = struct.pack(">i", EPOCH_MARK), struct.pack(">q", OFFSET_MARK)
    first, last = wire.more.index(epoch), wire.more.rindex(epoch)
    later = last if last > first else 0
    return wire.unit.index(epoch), first, wire.more.index(offset), later


def _ask(
    connection: socket.socket, request: object, version: int, answer_class: type[Answer]
) -> Answer:
    connection.sendall(_frame(request, version, 0))
    frame = receive_frame(connection)
    _, position = parse_response_header(key_of(type(request)), version, frame)
    return decode(answer_class, version, frame, position)


def _frame(request: object, version: int, correlation_id: int) -> bytes:
    header = RequestHeader(key_of(type(request)), version, correlation_id, "bench")
    return bytes(request_frame(header, request))
