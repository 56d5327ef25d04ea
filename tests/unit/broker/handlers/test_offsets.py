"""ListOffsets: special timestamps by version; a partition that is named twice is refused."""

from pathlib import Path

import pytest

from fakes import build
from fakes.handled import Handled, handle
from ottla.broker.handlers import offsets
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.replication.partition import ACKS_LEADER


def request_of(*timestamps: int) -> ListOffsetsRequest:
    """Partition 0 of t, once for each timestamp."""
    partitions = [
        ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        for timestamp in timestamps
    ]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)]
    )


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [
        (offsets.LATEST, 1),
        (offsets.EARLIEST, 1),
        (offsets.MAX_TIMESTAMP, 7),
        (offsets.EARLIEST_LOCAL, 8),
        (offsets.LATEST_TIERED, 9),
        (offsets.EARLIEST_PENDING_UPLOAD, 11),
    ],
)
def test_a_special_timestamp_is_known_from_its_version_on(
    tmp_path: Path, timestamp: int, first: int
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        found = await handled.call(ApiKey.LIST_OFFSETS, request_of(timestamp), first)
        assert found.topics[0].partitions[0].error_code == 0
        if first > 1:
            refused = await handled.call(ApiKey.LIST_OFFSETS, request_of(timestamp), first - 1)
            code = refused.topics[0].partitions[0].error_code
            assert code == ErrorCode.UNSUPPORTED_VERSION

    handle(tmp_path, scenario)


def test_a_partition_that_is_named_twice_is_refused_twice(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        request = request_of(offsets.LATEST, offsets.EARLIEST)
        response = await handled.call(ApiKey.LIST_OFFSETS, request, 7)
        codes = [partition.error_code for partition in response.topics[0].partitions]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2

    handle(tmp_path, scenario)


def test_an_epoch_ends_where_the_log_does_though_a_new_leader_knows_an_older_watermark(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        leader = handled.services.replicas.find(TopicPartition("t", 0))
        leader.append(memoryview(build.batch(3)), ACKS_LEADER, build.NOW_MS)
        leader.high_watermark = Offset(1)
        partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        topics = [OffsetForLeaderTopic(topic="t", partitions=[partition])]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
        response = await handled.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)
        assert response.topics[0].partitions[0].end_offset == 3

    handle(tmp_path, scenario)


def test_only_brokers_ask_for_epochs_as_replicas(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        topics = [OffsetForLeaderTopic(topic="t", partitions=[partition])]
        for replica_id, code in ((-1, 0), (3, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)):
            request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics)
            response = await handled.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)
            assert response.topics[0].partitions[0].error_code == code

    handle(tmp_path, scenario)
