"""States of a share group's partitions, changed together with what the group knows of them.

The group's log says first what is about to happen, then the share coordinator does it, then the
group's log says that it has happened. A step that was interrupted is repeated: initialising twice
and deleting twice is harmless. One group has one such change under way at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from ottla.coordinator.groups.all_groups import ShareStatesKnown
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.coordinator.groups.topics import IdPartition, Partitions
from ottla.coordinator.share.routing import ShareStateRouter
from ottla.errors import (
    ApiError,
    ErrorCode,
    GroupIdNotFound,
    PolicyViolation,
)
from ottla.model import Offset, Uuid
from ottla.queues.errors import NonEmptyGroup
from ottla.queues.share_state import NO_START, SharePartitionKey, StateSummary


class ShareGroupStates:
    """Called by handlers; owner of one lock for each group whose states change."""

    def __init__(self, groups: GroupCoordinator, states: ShareStateRouter) -> None:
        self._groups = groups
        self._states = states
        self._changing: dict[str, tuple[asyncio.Lock, int]] = {}  # and who holds it or waits

    async def initialize(self, group_id: str) -> None:
        """Return when the states of all partitions are there that the group reads.

        A state that is there already stays, unless its deletion was begun and not ended.
        """
        async with self._lock(group_id):
            known = await self._known(group_id)
            await asyncio.gather(
                *(self._begin(group_id, known, one) for one in sorted(known.initializing))
            )
            await self._groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.note_share_initialized(
                    ticket, group_id, known.initializing, now_ms
                ),
            )

    async def begin_anew(
        self, group_id: str, starts: Mapping[IdPartition, Offset]
    ) -> dict[IdPartition, ApiError]:
        """Have an empty group go on from these offsets; returns the partitions that do not."""
        partitions = frozenset(starts)
        failed: dict[IdPartition, ApiError] = {}
        async with self._lock(group_id):
            known: ShareStatesKnown = await self._groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.begin_share_states(
                    ticket, group_id, partitions, now_ms
                ),
            )
            if known.error is not ErrorCode.NONE:
                raise _refusal(known.error, group_id)
            for partition, start in starts.items():
                key = _key(group_id, partition)
                try:
                    await self._states.initialize(key, known.state_epoch, start)
                except ApiError as problem:
                    failed[partition] = problem
            await self._groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.note_share_initialized(
                    ticket, group_id, partitions - failed.keys(), now_ms
                ),
            )
        return failed

    async def delete(self, group_id: str, topic_ids: frozenset[Uuid] | None = None) -> bool:
        """Delete the states of these topics, or all; False if there is no such share group."""
        async with self._lock(group_id):
            known: ShareStatesKnown | None = await self._groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.begin_share_deletion(
                    ticket, group_id, topic_ids, now_ms
                ),
            )
            if known is None:
                return False
            if known.error is not ErrorCode.NONE:
                raise _refusal(known.error, group_id)
            await asyncio.gather(
                *(self._states.delete(_key(group_id, one)) for one in sorted(known.partitions))
            )
            gone = frozenset(p.topic_id for p in known.partitions)
            await self._groups.run(
                group_id,
                lambda groups, ticket, now_ms: groups.end_share_deletion(
                    ticket, group_id, gone, now_ms
                ),
            )
        return True

    async def known(self, group_id: str) -> Partitions:
        """The partitions of a share group that have a state."""
        return (await self._known(group_id)).partitions

    async def _known(self, group_id: str) -> ShareStatesKnown:
        known: ShareStatesKnown = await self._groups.run(
            group_id, lambda groups, ticket, now_ms: groups.share_states(ticket, group_id)
        )
        if known.error is not ErrorCode.NONE:
            raise _refusal(known.error, group_id)
        return known

    async def summarize(
        self, group_id: str, partitions: Iterable[IdPartition]
    ) -> dict[IdPartition, StateSummary | ApiError]:
        """The start offset of each partition, or why it is not known."""
        wanted = list(partitions)
        found = await asyncio.gather(
            *(self._states.summarize(_key(group_id, one)) for one in wanted),
            return_exceptions=True,
        )
        summaries: dict[IdPartition, StateSummary | ApiError] = {}
        for partition, summary in zip(wanted, found, strict=True):
            if isinstance(summary, BaseException) and not isinstance(summary, ApiError):
                raise summary
            summaries[partition] = summary
        return summaries

    async def _begin(self, group_id: str, known: ShareStatesKnown, partition: IdPartition) -> None:
        key = _key(group_id, partition)
        if partition.topic_id in known.deleting:
            await self._states.delete(key)
        await self._states.initialize(key, known.state_epoch, NO_START)

    @asynccontextmanager
    async def _lock(self, group_id: str) -> AsyncIterator[None]:
        lock, count = self._changing.get(group_id) or (asyncio.Lock(), 0)
        self._changing[group_id] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._changing[group_id]
            self._changing[group_id] = (lock, count - 1)
            if count == 1:
                del self._changing[group_id]


def _key(group_id: str, partition: IdPartition) -> SharePartitionKey:
    return SharePartitionKey(group_id, partition.topic_id, partition.partition)


def _refusal(error: ErrorCode, group_id: str) -> ApiError:
    if error is ErrorCode.NON_EMPTY_GROUP:
        return NonEmptyGroup(f"{group_id[:100]!r} has members: stop them first")
    if error is ErrorCode.POLICY_VIOLATION:
        return PolicyViolation("the broker has as many groups as max.groups allows")
    return GroupIdNotFound(f"there is no share group {group_id[:100]!r}")
