"""DescribeCluster (60) 0-2, AlterReplicaLogDirs (34) 1-2, DescribeLogDirs (35) 1-5,
DescribeQuorum (55) 0-2.

DescribeQuorum: the cluster's metadata is in a coordination store, not in a Raft log of the brokers.
The response for Kafka's metadata partition names the controller as its leader and only voter, for
admin tools.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from ottla.broker.services import RequestContext, Services
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import BrokerImage
from ottla.errors import ErrorCode
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.cluster import (
    BrokerSite,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    QuorumListener,
    QuorumNode,
    QuorumReplicaState,
)

_BROKERS: Final = 1  # the endpoint type; 2 would be Kafka's controllers
_METADATA_TOPIC: Final = "__cluster_metadata"


class DescribeCluster:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="this is a broker: ask it for brokers",
            )
        image, live = self._state.image, self._state.brokers_to_ask()
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=-1 if image.controller_id is None else image.controller_id,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS
                if request.include_cluster_authorized_operations
                else NOT_REQUESTED
            ),
            brokers=[
                *map(_live_broker, live),
                *(_dead_brokers(image, live) if request.include_fenced_brokers else ()),
            ],
            sites=_sites(image),
        )


def _live_broker(broker: BrokerImage) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=broker.id,
        host=broker.endpoint.host,
        port=broker.endpoint.port,
        rack=broker.rack,
    )


def _dead_brokers(image: ClusterImage, live: Sequence[BrokerImage]) -> list[DescribeClusterBroker]:
    """The members that are not alive: they have no address."""
    listed = {broker.id for broker in live}
    return [
        DescribeClusterBroker(
            broker_id=member.id, host="", port=-1, rack=member.rack, is_fenced=True
        )
        for _, member in sorted(image.members.items())
        if member.id not in listed
    ]


def _sites(image: ClusterImage) -> list[BrokerSite]:
    """The machines of all members, for Ottla's own commands."""
    return [
        BrokerSite(broker_id=member.id, machine=member.machine, is_draining=member.is_draining)
        for _, member in sorted(image.members.items())
    ]


class DescribeLogDirs:
    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    def __call__(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse | Coroutine[Any, Any, DescribeLogDirsResponse]:
        return slices.start(self._describe(request))

    def _describe(self, request: DescribeLogDirsRequest) -> Steps[DescribeLogDirsResponse]:
        requested = None
        if request.topics is not None:
            requested = {(t.topic, index) for t in request.topics for index in t.partitions}
        sizes: dict[str, list[DescribeLogDirsPartition]] = {}
        for tp, log in sorted(self._replicas.logs.items()):
            if requested is None or tp in requested:
                sizes.setdefault(tp.topic, []).append(
                    DescribeLogDirsPartition(
                        partition_index=tp.partition, partition_size=log.size_bytes
                    )
                )
            yield 1
        total_bytes, usable_bytes = self._replicas.disk_space()
        directory = DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR if self._replicas.is_offline else 0,
            log_dir=self._replicas.directory,
            topics=[
                DescribeLogDirsTopic(name=name, partitions=partitions)
                for name, partitions in sizes.items()
            ],
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return DescribeLogDirsResponse(results=[directory])


class AlterReplicaLogDirs:
    """A broker has one data directory: a replica may stay in it, and there is no other."""

    def __init__(self, services: Services) -> None:
        self._replicas = services.replicas

    def __call__(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> AlterReplicaLogDirsResponse | Coroutine[Any, Any, AlterReplicaLogDirsResponse]:
        return slices.start(self._alter(request))

    def _alter(self, request: AlterReplicaLogDirsRequest) -> Steps[AlterReplicaLogDirsResponse]:
        codes: dict[str, dict[int, ErrorCode]] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                for index in topic.partitions:
                    tp = TopicPartition(topic.name, index)
                    codes.setdefault(topic.name, {})[index] = self._code(directory.path, tp)
                    yield 1
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name=name,
                    partitions=[
                        AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                        for index, code in found.items()
                    ],
                )
                for name, found in codes.items()
            ]
        )

    def _code(self, path: str, tp: TopicPartition) -> ErrorCode:
        if path != self._replicas.directory:
            return ErrorCode.LOG_DIR_NOT_FOUND
        return ErrorCode.NONE if tp in self._replicas.logs else ErrorCode.REPLICA_NOT_AVAILABLE


class DescribeQuorum:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse | Coroutine[Any, Any, DescribeQuorumResponse]:
        return slices.start(self._describe(request))

    def _describe(self, request: DescribeQuorumRequest) -> Steps[DescribeQuorumResponse]:
        image = self._state.image
        leader = BrokerId(-1) if image.controller_id is None else image.controller_id
        topics = []
        for topic in request.topics:
            partitions: list[DescribeQuorumResponsePartition] = []
            topics.append(
                DescribeQuorumResponseTopic(topic_name=topic.topic_name, partitions=partitions)
            )
            for partition in topic.partitions:
                index = partition.partition_index
                partitions.append(self._partition(topic.topic_name, index, leader))
                yield 1
            yield 1
        return DescribeQuorumResponse(
            error_message=None,
            topics=topics,
            nodes=[
                QuorumNode(
                    node_id=broker.id,
                    listeners=[
                        QuorumListener(
                            name="BROKER", host=broker.endpoint.host, port=broker.endpoint.port
                        )
                    ],
                )
                for _, broker in sorted(image.brokers.items())
            ],
        )

    def _partition(
        self, topic: str, index: int, leader: BrokerId
    ) -> DescribeQuorumResponsePartition:
        if topic != _METADATA_TOPIC or index != 0:
            return DescribeQuorumResponsePartition(
                partition_index=index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"only {_METADATA_TOPIC}-0 has a quorum",
            )
        revision = self._state.image.revision
        return DescribeQuorumResponsePartition(
            partition_index=0,
            error_message=None,
            leader_id=leader,
            high_watermark=revision,
            current_voters=[QuorumReplicaState(replica_id=leader, log_end_offset=revision)],
        )
