"""ElectLeaders (43) 0-2, AlterPartitionReassignments (45) 0-1, ListPartitionReassignments (46) 0,
UnregisterBroker (64) 0.

A move is begun or cancelled by a commit of the store; the response does not wait for its end.
With tagged fields of AlterPartitionReassignments, which are Ottla's own, a broker is drained:
Kafka has no request for it, and a broker of another kind skips the fields and changes nothing.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, Protocol

from ottla.broker import slices
from ottla.broker.metadata_changes import MetadataChanges
from ottla.broker.services import RequestContext, Services
from ottla.cluster.controller.decision import Decision
from ottla.cluster.controller.reassignment import (
    begin_move,
    cancel_move,
    elect_preferred,
    elect_uncleanly,
    remove_broker,
    set_draining,
)
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.cluster.values import PartitionImage
from ottla.config import BrokerConfig
from ottla.errors import ApiError, ErrorCode, InvalidRequest
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.protocol.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

_Decide = Callable[[ClusterImage], Decision[None]]
_DECISION_UNITS: Final = 5  # of work, for each change that is requested


class _Elect(Protocol):
    def __call__(
        self, image: ClusterImage, tp: TopicPartition, defaults: BrokerConfig
    ) -> Decision[None]: ...


class Election(IntEnum):
    """The kinds of election, with their numbers on the wire."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders:
    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._changes = services.changes
        self._settings = services.settings

    async def __call__(
        self, request: ElectLeadersRequest, context: RequestContext
    ) -> ElectLeadersResponse:
        response = ElectLeadersResponse()
        elect: _Elect = _refuse_election
        if request.election_type in set(Election):
            elect = _ELECTIONS[Election(request.election_type)]
        else:
            response.error_code = ErrorCode.INVALID_REQUEST
        topics = request.topic_partitions
        if topics is None:
            topics = await slices.finish(_in_need(self._state.image, request.election_type))
        config = self._settings.broker
        outcomes = await _make(
            self._state,
            self._changes,
            (
                partial(elect, tp=TopicPartition(topic.topic, index), defaults=config)
                for topic in topics
                for index in topic.partitions
            ),
        )
        left, pace = iter(outcomes), slices.Pace()
        for topic in topics:
            elected = [_election_result(index, next(left)) for index in topic.partitions]
            response.replica_election_results.append(
                ReplicaElectionResult(topic=topic.topic, partition_result=elected)
            )
            await pace.spend(1 + len(elected))
        return response


async def _make(
    state: ClusterState, changes: MetadataChanges, decides: Iterable[_Decide]
) -> list[ApiError | None]:
    """Make the changes that are possible; the refusal of each, or None.

    First all are decided on an image that is new enough for refusals to be true. So a request for
    very many changes that make no sense costs one look at the store, and not one for each commit.
    """
    results: list[ApiError | None] = []
    possible: dict[int, _Decide] = {}
    try:
        await state.catch_up()
    except ApiError as refused:
        return [refused for _ in decides]
    pace = slices.Pace()
    for number, decide in enumerate(decides):
        await pace.spend(_DECISION_UNITS)
        try:
            if decide(state.image).changes:
                possible[number] = decide
            results.append(None)
        except ApiError as refused:
            results.append(refused)
    made = await changes.each(possible.values())
    for number, outcome in zip(possible, made, strict=True):
        results[number] = outcome
    return results


def _election_result(index: int, outcome: ApiError | None) -> ElectionPartitionResult:
    code, text = _code_and_text(outcome)
    return ElectionPartitionResult(partition_id=index, error_code=code, error_message=text)


def _code_and_text(outcome: ApiError | None) -> tuple[ErrorCode, str | None]:
    return (ErrorCode.NONE, None) if outcome is None else (outcome.code, str(outcome))


def _in_need(image: ClusterImage, election_type: int) -> Steps[list[ElectLeadersTopic]]:
    """The partitions that an election of all is about, as in Kafka: the others need none."""
    needs = _lacks_leader if election_type == Election.UNCLEAN else _lacks_preferred_leader
    found = []
    for topic in image.topics.values():
        partitions = [index for index, one in enumerate(topic.partitions) if needs(one)]
        if partitions:
            found.append(ElectLeadersTopic(topic=topic.name, partitions=partitions))
        yield 1 + len(topic.partitions)
    return found


def _lacks_leader(partition: PartitionImage) -> bool:
    return partition.leader is None


def _lacks_preferred_leader(partition: PartitionImage) -> bool:
    return partition.leader != partition.replicas[0]


def _refuse_election(
    image: ClusterImage, tp: TopicPartition, defaults: BrokerConfig
) -> Decision[None]:
    raise InvalidRequest("unknown election type: 0 is preferred, 1 is unclean")


_ELECTIONS: Final[dict[Election, _Elect]] = {
    Election.PREFERRED: elect_preferred,
    Election.UNCLEAN: elect_uncleanly,
}


class AlterPartitionReassignments:
    def __init__(self, services: Services) -> None:
        self._state = services.state
        self._changes = services.changes
        self._settings = services.settings

    async def __call__(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        may_resize = request.allow_replication_factor_change
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_resize, error_message=None
        )
        outcomes = await _make(
            self._state,
            self._changes,
            (
                self._decide(topic.name, one, may_resize=may_resize)
                for topic in request.topics
                for one in topic.partitions
            ),
        )
        left, pace = iter(outcomes), slices.Pace()
        for topic in request.topics:
            results = [_move_result(one.partition_index, next(left)) for one in topic.partitions]
            response.responses.append(
                ReassignableTopicResponse(name=topic.name, partitions=results)
            )
            await pace.spend(1 + len(results))
        if request.broker_id >= 0:
            broker, is_draining = BrokerId(request.broker_id), request.is_draining
            outcome = await self._drain(broker, is_draining=is_draining)
            response.broker_error_code, response.broker_error_message = _code_and_text(outcome)
        return response

    def _decide(self, topic: str, wanted: ReassignablePartition, *, may_resize: bool) -> _Decide:
        config, tp = self._settings.broker, TopicPartition(topic, wanted.partition_index)
        if wanted.replicas is None:
            return partial(cancel_move, tp=tp, defaults=config)
        target = [BrokerId(one) for one in wanted.replicas]
        return partial(begin_move, tp=tp, target=target, defaults=config, may_resize=may_resize)

    async def _drain(self, broker: BrokerId, *, is_draining: bool) -> ApiError | None:
        decide = partial(set_draining, broker=broker, is_draining=is_draining)
        (outcome,) = await _make(self._state, self._changes, [decide])
        return outcome


def _move_result(index: int, outcome: ApiError | None) -> ReassignablePartitionResponse:
    code, text = _code_and_text(outcome)
    return ReassignablePartitionResponse(partition_index=index, error_code=code, error_message=text)


class ListPartitionReassignments:
    def __init__(self, services: Services) -> None:
        self._state = services.state

    def __call__(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> (
        ListPartitionReassignmentsResponse | Coroutine[Any, Any, ListPartitionReassignmentsResponse]
    ):
        return slices.start(self._list(request))

    def _list(
        self, request: ListPartitionReassignmentsRequest
    ) -> Steps[ListPartitionReassignmentsResponse]:
        image = self._state.image
        asked: Iterable[tuple[str, Sequence[int] | None]] = ((name, None) for name in image.topics)
        if request.topics is not None:
            asked = ((topic.name, topic.partition_indexes) for topic in request.topics)
        topics = []
        for name, indexes in asked:
            topic = image.topics.get(name)
            if topic is None:
                continue
            chosen = range(len(topic.partitions)) if indexes is None else indexes
            moving = [
                _ongoing(index, topic.partitions[index])
                for index in chosen
                if 0 <= index < len(topic.partitions) and topic.partitions[index].is_moving
            ]
            if moving:
                topics.append(OngoingTopicReassignment(name=name, partitions=moving))
            yield 1 + len(chosen)
        return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _ongoing(index: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=[one for one in partition.adding if one not in partition.removing],
        removing_replicas=list(partition.removing),
    )


class UnregisterBroker:
    def __init__(self, services: Services) -> None:
        self._changes = services.changes

    async def __call__(
        self, request: UnregisterBrokerRequest, context: RequestContext
    ) -> UnregisterBrokerResponse:
        removed = partial(remove_broker, broker=BrokerId(request.broker_id))
        (outcome,) = await self._changes.each([removed])
        code, text = _code_and_text(outcome)
        return UnregisterBrokerResponse(error_code=code, error_message=text)
