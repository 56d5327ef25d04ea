"""TxnOffsetCommit (28), versions 0 to 5.

The offsets are written into the group's partition as a batch of the producer's transaction, and
count once its marker is there. From version 3 on the request says for which member of which
generation it is sent, and a zombie is refused (KIP-447). With version 5, transaction version 2,
nobody has sent AddOffsetsToTxn: the group's partition joins the transaction here. Before, it must
have joined, which the transaction's coordinator is asked unless the log knows (KIP-890).
"""

from collections.abc import Sequence
from typing import Final

from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import finish, parts
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit
from ottla.coordinator.groups.records import GroupDecision
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.transactions import BUMPING_VERSION
from ottla.coordinator.transactions.verification import (
    TransactionalWriter,
    Verification,
    is_verified,
    verify_partitions,
)
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRequest,
    ProducerFenced,
    TransactionAbortable,
)
from ottla.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TopicPartition
from ottla.protocol.codec import Steps
from ottla.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.replication.partition import LeaderPartition

_ADDS_FROM: Final = 5
_ABORTABLE_FROM: Final = 4
_TOGETHER: Final = 1000  # partitions that a shard decides about in one turn of the loop
# Of all that clients try again, this does not send them to look for another coordinator.
_SOON: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class TxnOffsetCommit:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._transactions = services.transactions
        self._state = services.state

    async def __call__(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        response, commits, places = await finish(self._plan(request))
        codes: list[ErrorCode] = []
        for part in parts(commits, _TOGETHER):
            codes += await self._commit(request, context.version, part)
        for place, code in zip(places, codes, strict=True):
            place.error_code = code
        return response

    def _plan(
        self, request: TxnOffsetCommitRequest
    ) -> Steps[
        tuple[TxnOffsetCommitResponse, list[Commit], list[TxnOffsetCommitResponsePartition]]
    ]:
        """The answer with its refusals, what is left to commit, and where that is answered."""
        image = self._state.image
        response = TxnOffsetCommitResponse()
        commits: list[Commit] = []
        places: list[TxnOffsetCommitResponsePartition] = []
        for topic in request.topics:
            answers = []
            yield 1
            for partition in topic.partitions:
                yield 1
                answer = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
                answers.append(answer)
                tp = TopicPartition(topic.name, partition.partition_index)
                if image.partition(tp) is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                places.append(answer)
                commits.append(
                    Commit(
                        tp,
                        Offset(partition.committed_offset),
                        LeaderEpoch(partition.committed_leader_epoch),
                        partition.committed_metadata or "",
                    )
                )
            response.topics.append(
                TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers)
            )
        return response, commits, places

    async def _commit(
        self, request: TxnOffsetCommitRequest, version: int, commits: Sequence[Commit]
    ) -> list[ErrorCode]:
        try:
            return await self._commit_checked(request, version, commits)
        except ApiError as refused:
            return [refused.code] * len(commits)

    async def _commit_checked(
        self, request: TxnOffsetCommitRequest, version: int, commits: Sequence[Commit]
    ) -> list[ErrorCode]:
        if not request.group_id:
            return [ErrorCode.INVALID_GROUP_ID] * len(commits)
        tp = self._coordinator.partition_of(request.group_id)
        partition = self._coordinator.shard(tp.partition).log.partition
        producer = ProducerIdentity(
            ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
        )
        committer = Committer(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            version=version,
        )
        verification = await self._verify(request.transactional_id, producer, version, partition)

        def decide(groups: Groups, ticket: Ticket[list[ErrorCode]], now_ms: int) -> GroupDecision:
            # The transaction may have ended while its coordinator was asked. Nothing comes
            # between this check and the append: markers wait for what the shard has decided.
            code = _refusal(verification, partition, producer, version)
            if code is not ErrorCode.NONE:
                return GroupDecision(responses=(ticket.respond([code] * len(commits)),))
            return groups.commit_in_transaction(
                ticket, request.group_id, producer, committer, commits, now_ms
            )

        return await self._coordinator.run(request.group_id, decide)

    async def _verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        version: int,
        partition: LeaderPartition,
    ) -> Verification | None:
        """Ask the transaction coordinator; None when the log has the transaction open."""
        if is_verified(partition, producer):
            return None
        transaction_version = BUMPING_VERSION if version >= _ADDS_FROM else 0
        writer = TransactionalWriter(transactional_id, producer, transaction_version)
        (verification,) = await verify_partitions(self._transactions, writer, [partition])
        return verification


def _refusal(
    verification: Verification | None,
    partition: LeaderPartition,
    producer: ProducerIdentity,
    version: int,
) -> ErrorCode:
    """Why the transaction may not write here, in words that this version's clients know."""
    known = partition.log.producers.get(producer.id)
    if known is not None and known.epoch > producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    try:
        if verification is not None:
            verification.check()
    except ProducerFenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    except TransactionAbortable as refused:
        return refused.code if version >= _ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
    except (InvalidProducerIdMapping, InvalidRequest) as refused:
        return refused.code
    except ConcurrentTransactions as refused:
        return refused.code if version >= _ADDS_FROM else _SOON
    except ApiError:
        return _SOON
    return ErrorCode.NONE
