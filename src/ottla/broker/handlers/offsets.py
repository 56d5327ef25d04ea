"""ListOffsets (2), versions 1 to 11, and OffsetForLeaderEpoch (23), versions 2 to 4.

Nothing is tiered here: the earliest local offset is the earliest one, and the newest tiered
offset and the earliest one still to be uploaded are answered with -1, as Kafka does.
"""

from typing import Final

from ottla.broker.routes import RequestContext
from ottla.errors import ApiError, ClusterAuthorizationFailed, UnsupportedVersion
from ottla.model import LeaderEpoch, TimestampMs, TopicPartition
from ottla.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas

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


class ListOffsets:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        read_committed = request.isolation_level == _READ_COMMITTED
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._answer(topic.name, wanted, context.version, read_committed)
                        for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _answer(
        self, topic: str, wanted: ListOffsetsPartition, version: int, read_committed: bool
    ) -> ListOffsetsPartitionResponse:
        index = wanted.partition_index
        try:
            partition = self._replicas.find(TopicPartition(topic, index))
            partition.check_epoch(wanted.current_leader_epoch)
            _check_timestamp(wanted.timestamp, version)
            offset, timestamp, epoch = _find(partition, wanted.timestamp, read_committed)
        except ApiError as refused:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=refused.code)
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < EARLIEST_PENDING_UPLOAD or version < _FIRST_VERSION.get(timestamp, 0):
        raise UnsupportedVersion(f"ListOffsets v{version} knows no special timestamp {timestamp}")


def _find(partition: LeaderPartition, timestamp: int, read_committed: bool) -> Found:
    log = partition.log
    end = partition.readable_end(read_committed=read_committed)
    if timestamp == LATEST:
        return end, -1, partition.leader_epoch
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return log.start_offset, -1, log.epochs.at(log.start_offset)
    if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return _NOTHING
    found = (
        log.max_timestamp()
        if timestamp == MAX_TIMESTAMP
        else log.offset_for_time(TimestampMs(timestamp))
    )
    if found is None or found[0] >= end:
        return _NOTHING
    return found


class OffsetForLeaderEpoch:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def __call__(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._answer(topic.topic, wanted, request.replica_id)
                        for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _answer(
        self, topic: str, wanted: OffsetForLeaderPartition, replica_id: int
    ) -> EpochEndOffset:
        index = wanted.partition
        try:
            if replica_id >= 0:
                raise ClusterAuthorizationFailed("only brokers of this cluster ask as replicas")
            partition = self._replicas.find(TopicPartition(topic, index))
            partition.check_epoch(wanted.current_leader_epoch)
            epoch, end = partition.log.epoch_end(LeaderEpoch(wanted.leader_epoch))
        except ApiError as refused:
            return EpochEndOffset(partition=index, error_code=refused.code)
        # A consumer must not learn of records that are not committed.
        end_offset = min(end, partition.high_watermark)
        return EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end_offset)
