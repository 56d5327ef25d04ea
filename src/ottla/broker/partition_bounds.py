"""Where logs begin and end, also those of partitions that other brokers lead."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.image import ClusterImage
from ottla.model import BrokerId, Offset, TopicPartition
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.replication.replicas import Replicas

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.replication.peers import Peers

_LATEST: Final = -1
_EARLIEST: Final = -2
_RESPONSE_S: Final = 2.0
_LANE: Final = "bounds"


class Bounds(NamedTuple):
    """The first offset of a log, and its high watermark."""

    start: Offset
    end: Offset


class PartitionBounds:
    """Looks at the logs that are led here, and asks the leaders of others with ListOffsets."""

    def __init__(
        self,
        replicas: Replicas,
        image: Callable[[], ClusterImage],
        peers: "Callable[[], Peers]",
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._peers = peers

    async def find(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The bounds of each partition whose leader is known and responds."""
        found: dict[TopicPartition, Bounds] = {}
        elsewhere: dict[BrokerId, list[TopicPartition]] = {}
        for tp in tps:
            here = self._replicas.leaders.get(tp)
            if here is not None:
                found[tp] = Bounds(here.log.start_offset, here.high_watermark)
                continue
            partition = self._image().partition(tp)
            if partition is not None and partition.leader is not None:
                elsewhere.setdefault(partition.leader, []).append(tp)
        for bounds in await asyncio.gather(
            *(self._ask(leader, theirs) for leader, theirs in elsewhere.items())
        ):
            found |= bounds
        return found

    async def _ask(
        self, leader: BrokerId, tps: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Bounds]:
        from ottla.client.errors import ClientError  # noqa: PLC0415  # not without peers

        try:
            starts, ends = await self._peers().send_all(
                leader,
                [
                    (_request(tps, _EARLIEST), ListOffsetsResponse),
                    (_request(tps, _LATEST), ListOffsetsResponse),
                ],
                timeout_s=_RESPONSE_S,
                lane=_LANE,
            )
        except ClientError:
            return {}
        first, last = _offsets(starts), _offsets(ends)
        return {tp: Bounds(first[tp], last[tp]) for tp in tps if tp in first and tp in last}


def _request(tps: Sequence[TopicPartition], timestamp: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for tp in tps:
        topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
        )
    return ListOffsetsRequest(
        replica_id=-1, topics=list(topics.values()), timeout_ms=int(_RESPONSE_S * 1000)
    )


def _offsets(response: ListOffsetsResponse) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(topic.name, one.partition_index): Offset(one.offset)
        for topic in response.topics
        for one in topic.partitions
        if not one.error_code and one.offset >= 0
    }
