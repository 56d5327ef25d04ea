"""Queries to whole shards of groups and of share states, on whichever brokers they are.

A shard itself responds to a query, and its response is confirmed as every other. A shard that does
not respond is an error: what it knows is not left out.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.cluster.image import ClusterImage, TopicImage
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from ottla.coordinator.share.coordinator import ShareCoordinator
from ottla.errors import (
    ApiError,
    CoordinatorNotAvailable,
    NotCoordinator,
    PeerError,
    RequestTimedOut,
)
from ottla.model import BrokerId, Offset, TopicPartition, Uuid
from ottla.protocol.messages.share_state import (
    ArchivingPartition,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ShardQuery,
    ShardResult,
)
from ottla.queues.share_state import SharePartitionKey

if TYPE_CHECKING:
    from ottla.replication.peers import Peers

log = logging.getLogger("ottla.broker")

_LANE: Final = "share queries"
_RESPONSE_S: Final = 10.0

Starts = dict[tuple[str, int], Offset]  # by group and partition


class ShardQueries:
    """Asks the shards that are led here, and those of other brokers with requests."""

    def __init__(
        self,
        broker_id: BrokerId,
        groups: GroupCoordinator,
        share: ShareCoordinator,
        image: Callable[[], ClusterImage],
        peers: "Callable[[], Peers]",
    ) -> None:
        self._broker_id = broker_id
        self._groups = groups
        self._share = share
        self._image = image
        self._peers = peers

    async def readers(self, topic: TopicImage) -> set[str]:
        """The share groups that subscribe to a topic or are to have a state of it.

        Raises an ApiError if one coordinator did not respond.
        """
        found: set[str] = set()
        for peer, indexes in self._by_leader(OFFSETS_TOPIC).items():
            if peer == self._broker_id:
                for index in indexes:
                    found.update(await self.readers_here(index, topic.name, topic.id))
            else:
                for result in await self._ask(peer, OFFSETS_TOPIC, indexes, topic):
                    found.update(result.groups)
        return found

    async def starts(self, topic: TopicImage) -> Starts:
        """Start offsets of all share groups of a topic; raises as `readers` does."""
        found: Starts = {}
        for peer, indexes in self._by_leader(SHARE_STATE_TOPIC).items():
            if peer == self._broker_id:
                for index in indexes:
                    found |= await self.starts_here(index, topic.id)
            else:
                for result in await self._ask(peer, SHARE_STATE_TOPIC, indexes, topic):
                    found |= {
                        (state.group_id, state.partition): Offset(state.start_offset)
                        for state in result.states
                    }
        return found

    async def readers_here(self, index: int, topic: str, topic_id: Uuid) -> list[str]:
        """The readers that one shard of this broker knows."""
        found: list[str] = await self._groups.shard(index).run(
            lambda groups, ticket, _: groups.share_readers(ticket, topic, topic_id)
        )
        return found

    async def starts_here(self, index: int, topic_id: Uuid) -> Starts:
        """The start offsets that one shard of this broker has."""
        found: Starts = await self._share.shard(index).run(
            lambda states, ticket, _: states.starts_of(ticket, topic_id)
        )
        return found

    async def resume_elsewhere(self, keys: Sequence[SharePartitionKey]) -> None:
        """Tell the leaders of other brokers that share partitions have dead letters to write."""
        by_leader: dict[BrokerId, list[SharePartitionKey]] = {}
        image = self._image()
        for key in keys:
            name = image.topic_names.get(key.topic_id)
            partition = None if name is None else image.partition(TopicPartition(name, key[2]))
            if partition is not None and partition.leader not in {None, self._broker_id}:
                assert partition.leader is not None
                by_leader.setdefault(partition.leader, []).append(key)
        for peer, theirs in by_leader.items():
            archiving = [
                ArchivingPartition(group_id=g, topic_id=t, partition=p) for g, t, p in theirs
            ]
            try:
                await self._send(peer, archiving=archiving)
            except ApiError as problem:  # the next round tells the leader again
                log.debug("leader not notified", extra={"broker": peer, "reason": problem})

    def _by_leader(self, topic: str) -> dict[BrokerId, list[int]]:
        """Every partition of a coordinator's topic, by its leader."""
        found: dict[BrokerId, list[int]] = {}
        for index, partition in enumerate(self._image().topics[topic].partitions):
            if partition.leader is None:
                raise CoordinatorNotAvailable(f"{topic}-{index} has no leader")
            found.setdefault(partition.leader, []).append(index)
        return found

    async def _ask(
        self, peer: BrokerId, coordinator: str, indexes: Sequence[int], topic: TopicImage
    ) -> list[ShardResult]:
        queries = [
            ShardQuery(
                coordinator_topic=coordinator,
                index=index,
                topic_name=topic.name,
                topic_id=topic.id,
            )
            for index in indexes
        ]
        response = await self._send(peer, queries=queries)
        if len(response.shards) != len(indexes):
            raise NotCoordinator(f"broker {peer} did not respond about all of {coordinator}")
        for result in response.shards:
            if result.error_code:
                raise PeerError(result.error_code, result.error_message or "")
        return response.shards

    async def _send(
        self,
        peer: BrokerId,
        *,
        queries: Sequence[ShardQuery] = (),
        archiving: Sequence[ArchivingPartition] = (),
    ) -> ReadShareGroupStateSummaryResponse:
        from ottla.client.errors import ClientError  # noqa: PLC0415  # not without peers

        peers = self._peers()
        registration = peers.registration
        if registration is None:
            raise NotCoordinator("this broker is not registered")
        request = ReadShareGroupStateSummaryRequest(
            group_id="",
            broker_token=Uuid(registration.token),
            queries=list(queries),
            archiving=list(archiving),
        )
        try:
            return await peers.send(
                peer,
                request,
                ReadShareGroupStateSummaryResponse,
                timeout_s=_RESPONSE_S,
                lane=_LANE,
            )
        except ClientError as problem:
            raise RequestTimedOut(f"broker {peer} did not respond: {problem}") from problem
