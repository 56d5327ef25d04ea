"""Membership in a share group: heartbeats that join it, stay in it and leave it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final
from uuid import UUID

from ottla.client.client import Client
from ottla.client.errors import TRANSPORT_ERRORS, ClientError, Refused, check
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.messages.share_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

_JOINING: Final = 0  # instead of an epoch
_LEAVING: Final = -1
_LEAVE_S: Final = 5.0  # otherwise the session ends by itself
_INTERVAL_MIN_S: Final = 0.1
_FORGOTTEN: Final = frozenset(  # the coordinator: join again
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class ShareMembership:
    """A member of a share group; `assigned` are the partitions that it may fetch, by topic id.

    Heartbeats are sent by a task from the first `join` on, whatever becomes of brokers: an error
    that lasts for the client's timeout is raised by the next `join`, which begins again.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        topics: Sequence[str],
        rng: Random,
        on_assigned: Callable[[], None],
    ) -> None:
        self.member_id = str(UUID(int=rng.getrandbits(128), version=4))
        self.assigned: dict[Uuid, tuple[int, ...]] = {}
        self._client = client
        self._group_id = group_id
        self._topics = sorted(set(topics))
        self._on_assigned = on_assigned
        self._epoch = _JOINING
        self._interval_s = _INTERVAL_MIN_S
        self._heartbeats: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Return when the group was joined; raises why it could not be, or not be stayed in."""
        heartbeats = self._heartbeats
        if heartbeats is not None and not heartbeats.done():
            return
        self._heartbeats = None
        if heartbeats is not None:
            heartbeats.result()
        await self._beat()
        self._heartbeats = asyncio.create_task(self._keep_beating())

    async def leave(self) -> None:
        """Leave the group; after an error its session expires by itself."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is None:
            return
        heartbeats.cancel()
        await asyncio.wait([heartbeats])
        self._epoch = _LEAVING
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._client.retry(self._exchange)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._beat()

    async def _beat(self) -> None:
        """Send a heartbeat; join again if the coordinator does not know this member."""
        try:
            await self._client.retry(self._exchange, on=TRANSPORT_ERRORS)
        except Refused as problem:
            if problem.code not in _FORGOTTEN or self._epoch == _JOINING:
                raise
            self._epoch = _JOINING
            await self._client.retry(self._exchange, on=TRANSPORT_ERRORS)

    async def _exchange(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=self._topics if self._epoch == _JOINING else None,
        )
        response = await self._client.send_to_coordinator(
            self._group_id, request, ShareGroupHeartbeatResponse
        )
        check(response.error_code, f"share group {self._group_id}", response.error_message)
        self._epoch = response.member_epoch
        self._interval_s = max(response.heartbeat_interval_ms / 1000, _INTERVAL_MIN_S)
        if response.assignment is not None:
            self.assigned = {
                topic.topic_id: tuple(topic.partitions)
                for topic in response.assignment.topic_partitions
            }
            self._on_assigned()
