"""ListOffsets (2), versions 1 to 11, and OffsetForLeaderEpoch (23), versions 2 to 4.

Nothing is tiered here: the earliest local offset is the earliest one, and the newest tiered
offset and the earliest one still to be uploaded are -1, as in Kafka.
"""

from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.services import RequestContext, Services
from ottla.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from ottla.model import LeaderEpoch, TimestampMs, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.replication.partition import LeaderPartition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_READ_COMMITTED: Final = 1
_FIRST_VERSION: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

Found = tuple[int, int, int]  # offset, timestamp, leader epoch
_NOTHING: Final = (-1, -1, -1)
_SEARCH_UNITS: Final = 20  # of work: a search by time reads from the disk


class ListOffsets:
    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    def __call__(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        return slices.start(self._find_all(request, context.version))

    def _find_all(self, request: ListOffsetsRequest, version: int) -> Steps[ListOffsetsResponse]:
        read_committed = request.isolation_level == _READ_COMMITTED
        twice = _named_twice(request.topics)
        response = ListOffsetsResponse()
        for topic in request.topics:
            results: list[ListOffsetsPartitionResponse] = []
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
            for requested in topic.partitions:
                is_twice = (topic.name, requested.partition_index) in twice
                result = self._find_one(topic.name, requested, version, read_committed, is_twice)
                results.append(result)
                yield _SEARCH_UNITS if requested.timestamp >= 0 and not result.error_code else 1
            yield 1
        return response

    def _find_one(
        self,
        topic: str,
        requested: ListOffsetsPartition,
        version: int,
        read_committed: bool,
        is_twice: bool,
    ) -> ListOffsetsPartitionResponse:
        index = requested.partition_index
        try:
            if is_twice:
                raise InvalidRequest(f"{topic}-{index} is named twice: name it once")
            partition = self._replicas.find(TopicPartition(topic, index))
            partition.check_epoch(requested.current_leader_epoch)
            _check_timestamp(requested.timestamp, version)
            offset, timestamp, epoch = _find(partition, requested.timestamp, read_committed)
        except ApiError as refused:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=refused.code)
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )


def _named_twice(topics: list[ListOffsetsTopic]) -> set[tuple[str, int]]:
    """Partitions that a request names more than once, which Kafka refuses as well."""
    named = Counter((t.name, p.partition_index) for t in topics for p in t.partitions)
    return {partition for partition, count in named.items() if count > 1}


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < EARLIEST_PENDING_UPLOAD or version < _FIRST_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"ListOffsets v{version} knows no special timestamp {timestamp}")


def _find(partition: LeaderPartition, timestamp: int, read_committed: bool) -> Found:
    log = partition.log
    end = partition.readable_end(read_committed=read_committed)
    if timestamp == LATEST:
        if partition.is_waited_for:
            raise OffsetNotAvailable(f"{partition.tp} has a new leader: retry")
        return end, -1, partition.leader_epoch
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return log.start_offset, -1, log.epochs.at(log.start_offset)
    if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return _NOTHING
    found = (
        log.times.newest()
        if timestamp == MAX_TIMESTAMP
        else log.times.first_since(TimestampMs(timestamp))
    )
    if found is None or found[0] >= end:
        return _NOTHING
    return found


class OffsetForLeaderEpoch:
    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    def __call__(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse | Coroutine[Any, Any, OffsetForLeaderEpochResponse]:
        return slices.start(self._find_all(request))

    def _find_all(
        self, request: OffsetForLeaderEpochRequest
    ) -> Steps[OffsetForLeaderEpochResponse]:
        response = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            results: list[EpochEndOffset] = []
            response.topics.append(
                OffsetForLeaderTopicResult(topic=topic.topic, partitions=results)
            )
            for requested in topic.partitions:
                results.append(self._find_one(topic.topic, requested, request.replica_id))
                yield 1
            yield 1
        return response

    def _find_one(
        self, topic: str, requested: OffsetForLeaderPartition, replica_id: int
    ) -> EpochEndOffset:
        index = requested.partition
        try:
            if replica_id >= 0:
                raise ClusterAuthorizationFailed("only brokers of this cluster ask as replicas")
            partition = self._replicas.find(TopicPartition(topic, index))
            partition.check_epoch(requested.current_leader_epoch)
            epoch, end = partition.log.epoch_end(LeaderEpoch(requested.leader_epoch))
        except ApiError as refused:
            return EpochEndOffset(partition=index, error_code=refused.code)
        # Not the high watermark, of which a new leader knows an older one than consumers have
        # read up to: they would take that for a truncation, and skip what they have not processed.
        return EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end)
