"""TxnOffsetCommit (28), versions 0 to 5.

The offsets are written into the group's partition as a batch of the producer's transaction, and
count once its marker is there. From version 3 on the request names its member and generation, and
a zombie is refused (KIP-447). With version 5, transaction version 2, there is no AddOffsetsToTxn:
the group's partition is added to the transaction here. Before, it must have been added, which the
transaction's coordinator verifies unless the log has the transaction open (KIP-890).
"""

from collections.abc import Sequence

from ottla.broker.commit_plan import COMMITS_PER_TURN, CommitPlan
from ottla.broker.services import RequestContext, Services
from ottla.broker.slices import Pace, parts
from ottla.broker.transaction_versions import known_error, transaction_version
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit
from ottla.coordinator.groups.records import GroupDecision
from ottla.coordinator.runtime.decision import Decision, Ticket
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.verification import (
    TransactionalWriter,
    Verification,
    is_verified,
    verify_partitions,
)
from ottla.errors import ApiError, ErrorCode
from ottla.model import ProducerEpoch, ProducerId
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.replication.partition import LeaderPartition

TxnCommitPlan = CommitPlan[TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition]


class TxnOffsetCommit:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._transactions = services.transaction_router
        self._state = services.state

    async def __call__(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        plan = await self._plan(request)
        codes: list[ErrorCode] = []
        for part in parts(plan.commits, COMMITS_PER_TURN):
            codes += await self._commit(request, context.version, part)
        return plan.build(codes)

    async def _plan(self, request: TxnOffsetCommitRequest) -> TxnCommitPlan:
        response, pace = TxnOffsetCommitResponse(), Pace()
        plan = CommitPlan(self._state.image, response, TxnOffsetCommitResponsePartition)
        for topic in request.topics:
            results: list[TxnOffsetCommitResponsePartition] = []
            response.topics.append(
                TxnOffsetCommitResponseTopic(name=topic.name, partitions=results)
            )
            await plan.add_in_slices(topic.name, topic.partitions, results, pace)
        return plan

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
            code = _check(verification, partition, producer, version)
            if self._coordinator.shard(tp.partition).log.partition is not partition:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # led in another epoch: try again
            if code is not ErrorCode.NONE:
                return Decision(responses=(ticket.respond([code] * len(commits)),))
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
        """The transaction coordinator's verdict; None when the log has the transaction open."""
        if is_verified(partition, producer):
            return None
        protocol = transaction_version(ApiKey.TXN_OFFSET_COMMIT, version)
        writer = TransactionalWriter(transactional_id, producer, protocol)
        (verification,) = await verify_partitions(self._transactions, writer, [partition])
        return verification


def _check(
    verification: Verification | None,
    partition: LeaderPartition,
    producer: ProducerIdentity,
    version: int,
) -> ErrorCode:
    """The error of a transaction that may not write here, as clients of this version know it."""
    known = partition.log.producers.get(producer.id)
    if known is not None and known.epoch > producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    try:
        if verification is not None:
            verification.check()
    except ApiError as refused:
        return known_error(ApiKey.TXN_OFFSET_COMMIT, version, refused.code)
    return ErrorCode.NONE
