"""Markers for partitions that other brokers lead, sent with WriteTxnMarkers.

Markers for one broker share requests, and one request is under way to it at a time. A request that
was not answered is sent again, and its first copy may arrive later still: requests are numbered,
and name the leader epochs that they are for, so that a late copy ends no later transaction.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.cluster.image import ClusterImage
from ottla.coordinator.transactions.markers import TransactionEnd
from ottla.errors import (
    ApiError,
    CoordinatorFenced,
    ErrorCode,
    InvalidProducerEpoch,
    NotLeader,
)
from ottla.model import BrokerId, LeaderEpoch, TopicPartition, Uuid
from ottla.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.peers import PeerBatches, Peers

_MARKERS_MAX: Final = 2000  # of one request
_RESPONSE_S: Final = 10.0  # more than a leader lets one marker take

_FINAL: Final[dict[int, type[ApiError]]] = {
    error.code: error for error in (InvalidProducerEpoch, CoordinatorFenced)
}


class _Item(NamedTuple):
    tp: TopicPartition
    leader_epoch: LeaderEpoch
    end: TransactionEnd


class PeerMarkers:
    """Sends markers to the leaders of their partitions."""

    def __init__(self, peers: Peers, image: Callable[[], ClusterImage]) -> None:
        self._peers = peers
        self._image = image
        self._sequence = itertools.count(1)
        self._batches: PeerBatches[_Item, None] = PeerBatches(
            peers, self._exchange, items_max=_MARKERS_MAX, key=_key
        )

    async def write(self, tp: TopicPartition, end: TransactionEnd) -> None:
        """Return once the marker is committed; raises an ApiError if it is refused or unknown."""
        partition = self._image().partition(tp)
        if partition is None or partition.leader is None:
            raise NotLeader(f"{tp} has no leader")
        await self._batches.ask(partition.leader, _Item(tp, partition.leader_epoch, end))

    async def _exchange(self, peer: BrokerId, items: Sequence[_Item]) -> list[ApiError | None]:
        registration = self._peers.registration
        if registration is None:
            return [NotLeader("this broker is not registered")] * len(items)
        ends = list(dict.fromkeys(item.end for item in items))
        request = WriteTxnMarkersRequest(
            markers=[_marker(end, [one for one in items if one.end == end]) for end in ends],
            broker_token=Uuid(registration.token),
            sequence=next(self._sequence),
        )
        response = await self._peers.send(
            peer, request, WriteTxnMarkersResponse, timeout_s=_RESPONSE_S, lane="markers"
        )
        codes = {
            (end, TopicPartition(topic.name, one.partition_index)): one.error_code
            for end, marker in zip(ends, response.markers, strict=False)
            for topic in marker.topics
            for one in topic.partitions
        }
        return [_result(peer, item.tp, codes.get((item.end, item.tp))) for item in items]


def _key(item: _Item) -> tuple[TopicPartition, TransactionEnd]:
    return item.tp, item.end


def _marker(end: TransactionEnd, items: Sequence[_Item]) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for tp, leader_epoch, _ in items:
        topic = topics.setdefault(tp.topic, WritableTxnMarkerTopic(name=tp.topic))
        topic.partition_indexes.append(tp.partition)
        topic.leader_epochs.append(leader_epoch)
    return WritableTxnMarker(
        producer_id=end.producer.id,
        producer_epoch=end.producer.epoch,
        transaction_result=end.is_commit,
        topics=list(topics.values()),
        coordinator_epoch=end.coordinator_epoch,
        transaction_version=end.version,
    )


def _result(peer: BrokerId, tp: TopicPartition, code: int | None) -> ApiError | None:
    """None if the marker is there; an error is retried unless the end itself is outdated.

    A leader that does not know the partition may just not have seen it yet.
    """
    if code == ErrorCode.NONE:
        return None
    name = "nothing" if code is None else ErrorCode(code).name
    error = NotLeader if code is None else _FINAL.get(code, NotLeader)
    return error(f"broker {peer} responded {name} for {tp}")
