"""The offsets of an OffsetCommit or TxnOffsetCommit that can be committed, and their results."""

from collections.abc import Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from ottla.broker.deferred import Deferred
from ottla.broker.slices import UNITS_PER_SLICE, Pace, parts
from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.offsets import Commit
from ottla.errors import ApiError, ErrorCode
from ottla.model import LeaderEpoch, Offset, TopicPartition

COMMITS_PER_TURN: Final = 1000  # partitions that a shard decides about in one turn of the loop


class CommittedPartition(Protocol):
    """A partition of the request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class PartitionResult(Protocol):
    """A partition of the response."""

    error_code: int


ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT", bound=PartitionResult)
ResultT_co = TypeVar("ResultT_co", bound=PartitionResult, covariant=True)


class NewResult(Protocol[ResultT_co]):
    """The class of a partition's result."""

    def __call__(self, *, partition_index: int) -> ResultT_co: ...


class CommitPlan(Deferred[list[ErrorCode], ResponseT], Generic[ResponseT, ResultT]):
    """Offsets to commit, and the parts of the response that get their errors.

    A partition that does not exist has its error at once; the others get theirs from the shard.
    """

    __slots__ = ("_image", "_response", "_result_class", "_results", "commits")

    def __init__(
        self, image: ClusterImage, response: ResponseT, result_class: NewResult[ResultT]
    ) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self._results: list[ResultT] = []  # of `commits`
        self._image = image
        self._response = response
        self._result_class = result_class

    def add(
        self,
        name: str | None,
        partitions: Iterable[CommittedPartition],
        results: list[ResultT],
    ) -> None:
        """Plan partitions of a topic, None if its id is unknown; fills `results`."""
        for partition in partitions:
            result = self._result_class(partition_index=partition.partition_index)
            results.append(result)
            if name is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            tp = TopicPartition(name, partition.partition_index)
            if self._image.partition(tp) is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            self._results.append(result)
            self.commits.append(
                Commit(
                    tp,
                    Offset(partition.committed_offset),
                    LeaderEpoch(partition.committed_leader_epoch),
                    partition.committed_metadata or "",
                )
            )

    async def add_in_slices(
        self,
        name: str | None,
        partitions: Sequence[CommittedPartition],
        results: list[ResultT],
        pace: Pace,
    ) -> None:
        """`add` for a topic that may have many partitions."""
        for part in parts(partitions, UNITS_PER_SLICE):
            self.add(name, part, results)
            await pace.spend(1 + len(part))

    def build(self, value: list[ErrorCode]) -> ResponseT:
        """The response, with one error for each of `commits`."""
        for result, code in zip(self._results, value, strict=True):
            result.error_code = code
        return self._response

    def refuse(self, error: ApiError) -> ResponseT:
        """The response, with the same error for all of `commits`."""
        return self.build([error.code] * len(self._results))
