"""Sealed partitions, from their last records to the end of their listing.

Each leader looks at its sealed partitions at intervals. One that has been sealed for long enough
and has no records is retired; with `partition.drop.when=read` its records are deleted once every
group has read them. The controller ends the listing of partitions that were retired long ago.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.services import Services
from ottla.cluster.controller.partition_count import retire, unlist
from ottla.cluster.values import NEVER_RETIRED
from ottla.config.topic import DropWhen
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC
from ottla.errors import ApiError
from ottla.model import Offset, TopicPartition
from ottla.records.batch import batches
from ottla.replication.partition import LeaderPartition

if TYPE_CHECKING:
    from ottla.client.client import Client

log = logging.getLogger("ottla.broker")

_TAIL_BYTES: Final = 1 << 16  # of markers behind the last record, which some clients do not commit
_WITHOUT_MEMBERS: Final = frozenset({"Empty", "Dead"})
_GROUPS_S: Final = 10.0  # for all groups to be asked


class PartitionRetirement:
    """The work on sealed partitions, repeated."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._state = services.state
        self._leaders = services.replicas.leaders
        self._clock = services.clock
        self._sealed_s: dict[LeaderPartition, float] = {}  # when each was first seen

    async def look(self) -> None:
        """Retire what can be retired, and end the listing of what was retired long ago."""
        sealed = list(self._sealed())
        now_s = self._clock.monotonic_s()
        self._sealed_s = {one: self._sealed_s.get(one, now_s) for one in sealed}
        for partition in sealed:
            try:
                await self._advance(partition, now_s)
            except ApiError as problem:
                extra = {"tp": str(partition.tp), "reason": problem}
                log.info("retirement of a sealed partition postponed", extra=extra)
        if self._state.image.controller_id == self._services.node_id:
            await self._unlist()

    def _sealed(self) -> Iterator[LeaderPartition]:
        """The sealed partitions that are led here and not retired."""
        for topic in self._state.image.topics.values():
            active_count = topic.active_count
            for index, partition in enumerate(topic.partitions[active_count:], active_count):
                leader = self._leaders.get((topic.name, index))
                if leader is not None and partition.retired_ms == NEVER_RETIRED:
                    yield leader

    async def _advance(self, partition: LeaderPartition, now_s: float) -> None:
        config = partition.log.config
        if (now_s - self._sealed_s[partition]) * 1000 < config.partition_drain_ms:
            return
        end = partition.log.end_offset
        if not self._is_complete(partition, end):
            return
        if partition.log.start_offset < end:
            if config.partition_drop_when is not DropWhen.READ:
                return
            if not await self._is_read(partition, end):
                return
            if not self._is_complete(partition, end):
                return  # another leader, or active again, while groups were asked
            partition.log.advance_start(end)
            await self._services.replicas.commit_deletions()
        tp, now_ms = partition.tp, self._clock.now_ms()
        await self._state.commit(lambda image: retire(image, tp, now_ms))
        log.info("sealed partition retired", extra={"tp": str(tp), "end": end})

    def _is_complete(self, partition: LeaderPartition, end: Offset) -> bool:
        """True if the partition is sealed, led here, and all of it is committed and decided."""
        tp = partition.tp
        topic = self._state.image.topics.get(tp.topic)
        return (
            self._leaders.get(tp) is partition
            and topic is not None
            and tp.partition >= topic.active_count
            and partition.log.end_offset == end
            and (partition.waiting is None or partition.waiting.is_empty)
            and partition.readable_end(read_committed=True) == end
        )

    async def _is_read(self, partition: LeaderPartition, end: Offset) -> bool:
        """True if groups have offsets of the topic, and each has committed this partition's end."""
        from ottla.client.client import Client  # noqa: PLC0415
        from ottla.client.errors import ClientError  # noqa: PLC0415

        image = self._state.image
        own = image.brokers.get(self._services.node_id)
        offsets = image.topics.get(OFFSETS_TOPIC)
        if own is None or offsets is None:
            return False
        if any(one.leader not in image.brokers for one in offsets.partitions):
            return False  # a group that no broker lists may have more to read
        client = Client([own.endpoint], client_id="ottla-retirement", timeout_s=_GROUPS_S)
        try:
            positions = await read_positions(client, partition.tp)
        except ClientError as problem:
            extra = {"tp": str(partition.tp), "reason": str(problem)}
            log.info("groups could not be asked what they have read", extra=extra)
            return False
        finally:
            await client.close()
        return bool(positions) and all(
            one is not None and _is_at_end(partition, one, end) for one in positions
        )

    async def _unlist(self) -> None:
        for topic in list(self._state.image.topics.values()):
            if topic.listed_count == topic.active_count:
                continue
            config = self._services.settings.topic(topic.config)
            name, now_ms = topic.name, self._clock.now_ms()
            if not unlist(self._state.image, name, config, now_ms).changes:
                continue
            decide = partial(unlist, name=name, config=config, now_ms=now_ms)
            try:
                await self._state.commit(decide)
            except ApiError as problem:
                extra = {"topic": name, "reason": problem}
                log.info("end of a partition's listing postponed", extra=extra)


async def read_positions(client: "Client", tp: TopicPartition) -> list[Offset | None]:
    """The committed offset of each group that has any of the topic; None without one of `tp`.

    None as well for a share group that has not finished every record, and for a group that has
    members and no offsets at all: it may have begun to read.
    """
    from ottla.client.group_offsets import stable_offsets  # noqa: PLC0415
    from ottla.client.groups import SHARE_TYPE, list_groups  # noqa: PLC0415

    positions: list[Offset | None] = []
    for group in await list_groups(client):
        known: Mapping[TopicPartition, Offset | None]
        if group.type == SHARE_TYPE:
            known = await _finished_offsets(client, group.group_id)
        else:
            known = await stable_offsets(client, group.group_id)
        has_begun = not known and group.state not in _WITHOUT_MEMBERS
        if has_begun or any(one.topic == tp.topic for one in known):
            positions.append(known.get(tp))
    return positions


async def _finished_offsets(client: "Client", group_id: str) -> dict[TopicPartition, Offset | None]:
    """The start offset of each partition of a share group; None if something is not finished."""
    from ottla.client.share_offsets import describe_share_offsets  # noqa: PLC0415

    described = await describe_share_offsets(client, group_id)
    return {tp: one.start if one.lag == 0 else None for tp, one in described.items()}


def _is_at_end(partition: LeaderPartition, position: Offset, end: Offset) -> bool:
    """True if only markers of transactions are between a committed offset and the end."""
    log = partition.log
    position = max(position, log.start_offset)
    if position >= end:
        return True
    found = log.read(position, end, _TAIL_BYTES, at_least_one=False)
    if found is None:
        return False
    for header, _ in batches(log.read_bytes(found)):
        if not header.is_control and header.last_offset >= position:
            return False
        position = Offset(header.next_offset)
    return position >= end
