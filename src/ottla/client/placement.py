"""Requests on where partitions are: moves, elections, drained and removed brokers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.client import Client
from ottla.client.errors import NoSuchTopic, NotSupported, Refused, check
from ottla.client.partitions import by_topic
from ottla.errors import ErrorCode
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.protocol.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

PREFERRED, UNCLEAN = 0, 1  # kinds of election
_PARTITIONS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition that is being moved: its replicas now, and those that come and go."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]

    @property
    def target(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


async def move_partitions(
    client: Client, targets: Mapping[TopicPartition, Sequence[BrokerId] | None]
) -> dict[TopicPartition, Refused]:
    """Begin to move partitions to these replicas, or cancel with None; returns the refusals."""
    refused = dict[TopicPartition, Refused]()
    tps = list(targets)
    for first in range(0, len(tps), _PARTITIONS_PER_REQUEST):
        some = tps[first : first + _PARTITIONS_PER_REQUEST]
        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=tp.partition, replicas=_as_list(targets[tp])
                    )
                    for tp in of_topic
                ],
            )
            for topic, of_topic in by_topic(some).items()
        ]
        request = AlterPartitionReassignmentsRequest(topics=topics)
        response = await client.send_to_any(request, AlterPartitionReassignmentsResponse)
        check(response.error_code, "the move", response.error_message)
        for found in response.responses:
            for one in found.partitions:
                tp = TopicPartition(found.name, one.partition_index)
                _note(refused, tp, one.error_code, one.error_message)
    return refused


async def list_moves(client: Client) -> dict[TopicPartition, Move]:
    """The partitions that are being moved; none if the broker knows no moves."""
    try:
        response = await client.send_to_any(
            ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse
        )
    except NotSupported:
        return {}
    check(response.error_code, "the moves", response.error_message)
    return {
        TopicPartition(topic.name, one.partition_index): Move(
            replicas=tuple(map(BrokerId, one.replicas)),
            adding=tuple(map(BrokerId, one.adding_replicas)),
            removing=tuple(map(BrokerId, one.removing_replicas)),
        )
        for topic in response.topics
        for one in topic.partitions
    }


async def elect_leaders(
    client: Client, tps: Iterable[TopicPartition] | None, kind: int
) -> tuple[list[TopicPartition], dict[TopicPartition, Refused]]:
    """Elect leaders, of all partitions that need it with None; those elected, and refusals."""
    topics = None
    if tps is not None:
        topics = [
            ElectLeadersTopic(topic=topic, partitions=[tp.partition for tp in of_topic])
            for topic, of_topic in by_topic(list(tps)).items()
        ]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
    response = await client.send_to_any(request, ElectLeadersResponse)
    check(response.error_code, "the election")
    elected = list[TopicPartition]()
    refused = dict[TopicPartition, Refused]()
    for found in response.replica_election_results:
        for one in found.partition_result:
            tp = TopicPartition(found.topic, one.partition_id)
            if one.error_code == ErrorCode.NONE:
                elected.append(tp)
            _note(refused, tp, one.error_code, one.error_message)
    return elected, refused


async def set_draining(client: Client, broker: BrokerId, *, is_draining: bool) -> None:
    """Have the replicas of a broker moved to others, or let it have replicas again."""
    request = AlterPartitionReassignmentsRequest(broker_id=broker, is_draining=is_draining)
    response = await client.send_to_any(request, AlterPartitionReassignmentsResponse)
    check(response.error_code, f"broker {broker}", response.error_message)
    if response.broker_error_code < 0:
        raise NotSupported("the brokers of this cluster are not Ottla's, and cannot be drained")
    check(response.broker_error_code, f"broker {broker}", response.broker_error_message)


async def remove_broker(client: Client, broker: BrokerId) -> None:
    """Have the cluster forget a broker that is stopped and has no replicas."""
    request = UnregisterBrokerRequest(broker_id=broker)
    response = await client.send_to_any(request, UnregisterBrokerResponse)
    check(response.error_code, f"broker {broker}", response.error_message)


def _as_list(replicas: Sequence[BrokerId] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _note(
    refused: dict[TopicPartition, Refused], tp: TopicPartition, code: int, message: str | None
) -> None:
    try:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchTopic(tp.topic, tp.partition)
        check(code, str(tp), message)
    except Refused as problem:
        refused[tp] = problem
