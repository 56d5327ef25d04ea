"""ElectLeaders (43) 0-2, AlterPartitionReassignments (45) 0-1, ListPartitionReassignments (46) 0.

Replicas do not move yet: a partition may be assigned to the replicas that it has, and no move is
ever under way. Leaders are elected as soon as a replica can lead, and do not move either, so an
election that is requested finds nothing to do, or no replica that may lead.
"""

from collections.abc import Callable, Coroutine, Sequence
from enum import IntEnum
from typing import Any

from ottla.broker import slices
from ottla.broker.services import RequestContext, Services
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import PartitionImage
from ottla.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)


class Election(IntEnum):
    """The kinds of election, with their numbers on the wire."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: ElectLeadersRequest, context: RequestContext
    ) -> ElectLeadersResponse | Coroutine[Any, Any, ElectLeadersResponse]:
        return slices.start(self._elect_all(request))

    def _elect_all(self, request: ElectLeadersRequest) -> Steps[ElectLeadersResponse]:
        image = self._state.image
        response = ElectLeadersResponse()
        elect: Callable[[PartitionImage], None] = _refuse_election
        if request.election_type in set(Election):
            elect = _ELECTIONS[Election(request.election_type)]
        else:
            response.error_code = ErrorCode.INVALID_REQUEST
        if (topics := request.topic_partitions) is None:
            topics = yield from _not_led_by_preferred(image)
        for topic in topics:
            results = []
            for index in topic.partitions:
                result = ElectionPartitionResult(partition_id=index, error_message=None)
                try:
                    elect(_find(image, TopicPartition(topic.topic, index)))
                except ApiError as refused:
                    result.error_code, result.error_message = refused.code, str(refused)
                results.append(result)
                yield 1
            response.replica_election_results.append(
                ReplicaElectionResult(topic=topic.topic, partition_result=results)
            )
        return response


def _not_led_by_preferred(image: ClusterImage) -> Steps[list[ElectLeadersTopic]]:
    """The partitions that an election of all is about, as in Kafka: the others need none."""
    found = []
    for topic in image.topics.values():
        partitions = [
            index
            for index, partition in enumerate(topic.partitions)
            if partition.leader != partition.replicas[0]
        ]
        if partitions:
            found.append(ElectLeadersTopic(topic=topic.name, partitions=partitions))
        yield 1 + len(topic.partitions)
    return found


def _elect_preferred(partition: PartitionImage) -> None:
    if partition.leader == partition.replicas[0]:
        raise ElectionNotNeeded("the preferred replica leads the partition already")
    raise PreferredLeaderNotAvailable(
        f"broker {partition.replicas[0]} cannot lead the partition now: leaders are not moved"
        " between live brokers yet"
    )


def _elect_uncleanly(partition: PartitionImage) -> None:
    if partition.leader is not None:
        raise ElectionNotNeeded("the partition has a leader")
    raise EligibleLeadersNotAvailable(
        "no replica may lead the partition: start its brokers, or set the topic's"
        " unclean.leader.election.enable"
    )


def _refuse_election(partition: PartitionImage) -> None:
    raise InvalidRequest("unknown election type: 0 is preferred, 1 is unclean")


_ELECTIONS: dict[Election, Callable[[PartitionImage], None]] = {
    Election.PREFERRED: _elect_preferred,
    Election.UNCLEAN: _elect_uncleanly,
}


class AlterPartitionReassignments:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> (
        AlterPartitionReassignmentsResponse
        | Coroutine[Any, Any, AlterPartitionReassignmentsResponse]
    ):
        return slices.start(self._alter(request))

    def _alter(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Steps[AlterPartitionReassignmentsResponse]:
        image = self._state.image
        may_resize = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_resize, error_message=None
        )
        for topic in request.topics:
            results = []
            for partition in topic.partitions:
                index, replicas = partition.partition_index, partition.replicas
                result = ReassignablePartitionResponse(partition_index=index, error_message=None)
                try:
                    found = _find(image, TopicPartition(topic.name, index))
                    _check_move(image, found, replicas, may_resize=may_resize)
                except ApiError as refused:
                    result.error_code, result.error_message = refused.code, str(refused)
                results.append(result)
                yield 1 + len(replicas or ())
            response.responses.append(
                ReassignableTopicResponse(name=topic.name, partitions=results)
            )
        return response


def _find(image: ClusterImage, tp: TopicPartition) -> PartitionImage:
    partition = image.partition(tp)
    if partition is None:
        raise UnknownTopicOrPartition(f"there is no partition {tp}")
    return partition


def _check_move(
    image: ClusterImage,
    partition: PartitionImage,
    replicas: Sequence[int] | None,
    *,
    may_resize: bool,
) -> None:
    """Refuse every assignment but that to the replicas that the partition has."""
    if replicas is None:
        raise NoReassignmentInProgress("no move of the partition is under way")
    if not replicas:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(replicas) > len(image.registered):
        raise InvalidReplicaAssignment(
            "there are fewer brokers than replicas: name each broker once"
        )
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment("a broker is named twice: name each once")
    if unknown := [one for one in replicas if BrokerId(one) not in image.brokers]:
        raise InvalidReplicaAssignment(f"there is no broker {unknown[0]}")
    if len(replicas) != len(partition.replicas) and not may_resize:
        raise InvalidReplicationFactor(
            f"the partition has {len(partition.replicas)} replicas, and the request does not allow"
            " another number"
        )
    if tuple(replicas) != partition.replicas:
        raise InvalidReplicaAssignment("replicas cannot be moved between brokers yet")


class ListPartitionReassignments:
    def __init__(self, services: Services) -> None:
        """ListPartitionReassignments needs no services."""

    def __call__(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None, topics=[])
