"""The offsets of an OffsetCommit or TxnOffsetCommit that can be committed, and their results."""

from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from ottla.cluster.image import ClusterImage
from ottla.coordinator.groups.offsets import Commit
from ottla.errors import ApiError, ErrorCode
from ottla.model import LeaderEpoch, Offset, TopicPartition
from ottla.protocol.codec import Steps

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


class CommitPlan(Generic[ResponseT, ResultT]):
    """Offsets to commit, and the parts of the response that get their errors.

    A partition that does not exist has its error at once; the others get theirs from the shard.
    """

    def __init__(
        self, image: ClusterImage, response: ResponseT, new_result: Callable[[int], ResultT]
    ) -> None:
        """`new_result` makes the result of the partition of an index."""
        self.commits: list[Commit] = []
        self._results: list[ResultT] = []  # of `commits`
        self._image = image
        self._response = response
        self._new_result = new_result

    def add_topic(
        self,
        name: str | None,
        partitions: Iterable[CommittedPartition],
        results: list[ResultT],
    ) -> Steps[None]:
        """Plan the partitions of a topic, None if its id is unknown; fills `results`."""
        yield 1
        for partition in partitions:
            result = self._new_result(partition.partition_index)
            results.append(result)
            yield 1
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

    def respond(self, codes: list[ErrorCode]) -> ResponseT:
        """The response, with one error for each of `commits`."""
        for result, code in zip(self._results, codes, strict=True):
            result.error_code = code
        return self._response

    def refuse(self, refused: ApiError) -> ResponseT:
        """The response, with the same error for all of `commits`."""
        return self.respond([refused.code] * len(self._results))
