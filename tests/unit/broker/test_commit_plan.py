"""Offsets of one request: which are committed, and where their errors go."""

from dataclasses import dataclass, field

from ottla.broker.commit_plan import CommitPlan
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.values import PartitionImage
from ottla.coordinator.groups.offsets import Commit
from ottla.errors import ErrorCode, NotCoordinator
from ottla.model import BrokerId, LeaderEpoch, Offset, TopicPartition, Uuid

LED = PartitionImage(
    BrokerId(0), LeaderEpoch(0), replicas=(BrokerId(0),), isr=(BrokerId(0),), partition_epoch=0
)
IMAGE = ClusterImage(topics={"t": TopicImage("t", Uuid(bytes(16)), (LED,))})


@dataclass
class Partition:
    partition_index: int
    committed_offset: int = 7
    committed_leader_epoch: int = 2
    committed_metadata: str | None = None


@dataclass
class Result:
    partition_index: int
    error_code: int = ErrorCode.NONE


@dataclass
class Response:
    results: list[Result] = field(default_factory=list)


def planned(*topics: tuple[str | None, int]) -> CommitPlan[Response, Result]:
    """A plan for one partition of each topic, in a cluster that has one partition of t."""
    response = Response()
    plan = CommitPlan(IMAGE, response, Result)
    for name, index in topics:
        plan.add(name, [Partition(index)], response.results)
    return plan


def test_offsets_of_partitions_that_exist_are_committed() -> None:
    plan = planned(("t", 0))
    tp = TopicPartition("t", 0)
    assert plan.commits == [Commit(tp, Offset(7), LeaderEpoch(2), "")]


def test_every_partition_has_a_result_and_unknown_ones_their_error_at_once() -> None:
    plan = planned((None, 0), ("gone", 0), ("t", 0), ("t", 1))
    assert len(plan.commits) == 1
    response = plan.build([ErrorCode.ILLEGAL_GENERATION])
    assert [result.error_code for result in response.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_a_refusal_is_the_error_of_all_offsets_that_were_left_to_commit() -> None:
    plan = planned(("t", 0), ("gone", 0))
    response = plan.refuse(NotCoordinator("look again"))
    assert [result.error_code for result in response.results] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
