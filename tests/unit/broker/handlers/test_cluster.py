"""The cluster as admin tools see it: brokers, log directories, a quorum of one."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.cluster import DescribeClusterRequest
from ottla.protocol.messages.log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)

CONTROLLERS = 2


def test_brokers_are_described_and_controllers_are_refused(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        response = await handled.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), 1)
        (broker,) = response.brokers
        assert (broker.broker_id, response.controller_id) == (0, 0)
        assert response.cluster_id == handled.services.state.image.cluster_id
        request = DescribeClusterRequest(endpoint_type=CONTROLLERS)
        refused = await handled.call(ApiKey.DESCRIBE_CLUSTER, request, 1)
        assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

    handle(tmp_path, scenario)


def test_a_log_directory_lists_the_partitions_that_are_led(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t", 2)
        request = DescribeLogDirsRequest(topics=None)
        (directory,) = (await handled.call(ApiKey.DESCRIBE_LOG_DIRS, request, 4)).results
        assert directory.log_dir == str(tmp_path)
        assert [len(topic.partitions) for topic in directory.topics] == [2]
        assert directory.total_bytes > 0

    handle(tmp_path, scenario)


def test_only_the_metadata_partition_has_a_quorum(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        partitions = [DescribeQuorumRequestPartition(partition_index=0)]
        topics = [
            DescribeQuorumRequestTopic(topic_name=name, partitions=partitions)
            for name in ("__cluster_metadata", "t")
        ]
        request = DescribeQuorumRequest(topics=topics)
        metadata, other = (await handled.call(ApiKey.DESCRIBE_QUORUM, request, 2)).topics
        assert [v.replica_id for v in metadata.partitions[0].current_voters] == [0]
        assert other.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    handle(tmp_path, scenario)
