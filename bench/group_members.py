"""Members that only join and send heartbeats: so light that a thousand fit in a process."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.load import LoadFailed
from bench.sockets import HOST
from ottla.protocol.api import (
    APIS,
    RequestHeader,
    key_of,
    parse_response_header,
    request_frame,
)
from ottla.protocol.codec import decode
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.protocol.messages.coordination import FindCoordinatorRequest

JOIN_VERSION: Final = 3  # the last that asks nobody to come twice
SYNC_VERSION: Final = 3
HEARTBEAT_VERSION: Final = 3
FIND_VERSION: Final = 3
SESSION_MS: Final = 45_000
JOIN_S: Final = 60.0
ATTEMPTS_MAX: Final = 300
RETRY_S: Final = 0.1
_RETRIABLE: Final = {14, 15, 16, 27}  # loading, not available, elsewhere, rebalancing


class RawMember:
    """One connection and the place in a group that it was given."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, group: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._group = group
        self._member_id = ""
        self._generation = -1
        self._correlation_ids = itertools.count(1)

    async def join(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            found = await self._ask(FindCoordinatorRequest(key=self._group), FIND_VERSION)
            if found.error_code == 0 and await self._try_join():
                return
            await asyncio.sleep(RETRY_S)
        raise LoadFailed(f"{self._group} was never complete")

    async def _try_join(self) -> bool:
        joined = await self._ask(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self._member_id,
                protocol_type="bench",
                protocols=[JoinGroupRequestProtocol(name="none", metadata=b"")],
            ),
            JOIN_VERSION,
        )
        if joined.error_code in _RETRIABLE:
            return False
        if joined.error_code:
            raise LoadFailed(f"a join was answered with error code {joined.error_code}")
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assignments = [
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"x")
            for member in joined.members
        ]
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member_id,
                assignments=assignments,
            ),
            SYNC_VERSION,
        )
        return bool(synced.error_code == 0)

    async def beat(self) -> None:
        answer = await self._ask(
            HeartbeatRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id
            ),
            HEARTBEAT_VERSION,
        )
        if answer.error_code:
            raise LoadFailed(f"a heartbeat was answered with error code {answer.error_code}")

    async def _ask(self, request: object, version: int) -> Any:
        key = key_of(type(request))
        header = RequestHeader(key, version, next(self._correlation_ids), "bench")
        self._writer.write(request_frame(header, request))
        size_bytes = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size_bytes)
        _, position = parse_response_header(key, version, frame)
        return decode(APIS[key].response_class, version, frame, position)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def joined_members(
    port: int, groups: Sequence[str], size: int
) -> AsyncIterator[list[RawMember]]:
    """Groups of `size` members each; all have joined."""
    members: list[RawMember] = []
    try:
        for group in groups:
            for _ in range(size):
                reader, writer = await asyncio.open_connection(HOST, port)
                members.append(RawMember(reader, writer, group))
        async with asyncio.timeout(JOIN_S):
            await asyncio.gather(*(member.join() for member in members))
        yield members
    finally:
        for member in members:
            member.close()


async def beat_steadily(members: Sequence[RawMember], interval_s: float, seconds: float) -> None:
    """Each member sends a heartbeat every `interval_s`, all of them evenly spread."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    async def beat_on(member: RawMember, first_s: float) -> None:
        due_s = first_s
        while due_s < start_s + seconds:
            await asyncio.sleep(due_s - loop.time())
            await member.beat()
            due_s += interval_s

    async with asyncio.TaskGroup() as tasks:
        for number, member in enumerate(members):
            tasks.create_task(beat_on(member, start_s + interval_s * number / len(members)))
