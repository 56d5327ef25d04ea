"""OffsetCommit (8) 2-10, OffsetFetch (9) 1-10, OffsetDelete (47) 0.

Every requested partition has a result. A partition without a committed offset has offset -1 and no
error. An offset that an open transaction may move is UNSTABLE_OFFSET_COMMIT for requests with
`require_stable`, as consumers of committed records send (KIP-447). The retention time that
OffsetCommit 2 to 4 carries is ignored, as in Kafka.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from ottla.broker import slices
from ottla.broker.commit_plan import COMMITS_PER_TURN, CommitPlan
from ottla.broker.deferred import Deferred
from ottla.broker.services import RequestContext, Services
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import (
    Commit,
    DeletedOffsets,
    FoundOffset,
    FoundOffsets,
    UnstableOffset,
)
from ottla.coordinator.groups.records import GroupDecision
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import (
    ApiError,
    ErrorCode,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMemberId,
)
from ottla.model import NO_EPOCH, NO_OFFSET, NO_UUID, TopicPartition, Uuid
from ottla.protocol.codec import Steps
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_IDS_FROM: Final = 10  # versions from here on name topics by their ids
_MANY_GROUPS_FROM: Final = 8
_NOT_MEMBERS: Final[dict[ErrorCode, type[ApiError]]] = {
    error.code: error for error in (UnknownMemberId, StaleMemberEpoch, IllegalGeneration)
}

OffsetCommitPlan = CommitPlan[OffsetCommitResponse, OffsetCommitResponsePartition]


class OffsetCommit:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._state = services.state

    def __call__(
        self, request: OffsetCommitRequest, context: RequestContext
    ) -> (
        OffsetCommitResponse
        | Deferred[list[ErrorCode], OffsetCommitResponse]
        | Coroutine[Any, Any, OffsetCommitResponse]
    ):
        response = OffsetCommitResponse()
        plan = CommitPlan(self._state.image, response, OffsetCommitResponsePartition)
        if _is_large(request):
            return self._commit_large(request, context.version, plan, response)
        for topic in request.topics:
            name, results = self._begin_topic(topic, context.version, response)
            plan.add(name, topic.partitions, results)
        decide = _decide(request, context.version, plan.commits)
        return plan.submit(self._coordinator, request.group_id, decide)

    async def _commit_large(
        self,
        request: OffsetCommitRequest,
        version: int,
        plan: OffsetCommitPlan,
        response: OffsetCommitResponse,
    ) -> OffsetCommitResponse:
        pace = slices.Pace()
        for topic in request.topics:
            name, results = self._begin_topic(topic, version, response)
            await plan.add_in_slices(name, topic.partitions, results, pace)
        codes: list[ErrorCode] = []
        for part in slices.parts(plan.commits, COMMITS_PER_TURN):
            try:
                decide = _decide(request, version, part)
                errors: list[ErrorCode] = await self._coordinator.run(request.group_id, decide)
                codes += errors
            except ApiError as refused:
                codes += [refused.code] * len(part)
        return plan.build(codes)

    def _begin_topic(
        self, topic: OffsetCommitRequestTopic, version: int, response: OffsetCommitResponse
    ) -> tuple[str | None, list[OffsetCommitResponsePartition]]:
        """The name of a topic, None if no topic has its id, and a list for its results."""
        results: list[OffsetCommitResponsePartition] = []
        response.topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results)
        )
        if version < _IDS_FROM:
            return topic.name, results
        return self._state.image.topic_names.get(topic.topic_id), results


def _is_large(request: OffsetCommitRequest) -> bool:
    """True if the offsets are more work than one slice."""
    topics = request.topics
    return (
        len(topics) > slices.UNITS_PER_SLICE
        or sum([1 + len(topic.partitions) for topic in topics]) > slices.UNITS_PER_SLICE
    )


def _decide(
    request: OffsetCommitRequest, version: int, commits: Sequence[Commit]
) -> Callable[[Groups, Ticket[list[ErrorCode]], int], GroupDecision]:
    committer = Committer(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=version,
    )
    group_id = request.group_id
    return lambda groups, ticket, now_ms: groups.commit(
        ticket, group_id, committer, commits, now_ms
    )


class OffsetFetch:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups
        self._state = services.state

    async def __call__(
        self, request: OffsetFetchRequest, context: RequestContext
    ) -> OffsetFetchResponse:
        if context.version >= _MANY_GROUPS_FROM:
            has_ids = context.version >= _IDS_FROM
            groups, pace = [], slices.Pace()
            for group in request.groups:
                found = await self._fetch(group, request.require_stable, has_ids=has_ids)
                groups.append(found)
                await pace.spend(4 + sum(1 + len(topic.partitions) for topic in found.topics))
            return OffsetFetchResponse(groups=groups)
        group = await slices.finish(_only_group(request))
        found = await self._fetch(group, request.require_stable, has_ids=False)
        return await slices.finish(_for_one_group(found))

    async def _fetch(
        self, group: OffsetFetchRequestGroup, is_stable: bool, *, has_ids: bool
    ) -> OffsetFetchResponseGroup:
        try:
            if group.topics is None:
                found = await self._find(group, None, is_stable)
                topics = await slices.finish(self._all_topics(found, has_ids))
            else:
                topics = await self._topics(group, group.topics, is_stable, has_ids)
        except ApiError as refused:
            return await slices.finish(_refused_group(group, refused.code))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    async def _topics(
        self,
        group: OffsetFetchRequestGroup,
        topics: Sequence[OffsetFetchRequestTopics],
        is_stable: bool,
        has_ids: bool,
    ) -> list[OffsetFetchResponseTopics]:
        names = self._state.image.topic_names
        named = [(t, names.get(t.topic_id) if has_ids else t.name) for t in topics]
        tps = await slices.finish(_partitions(named))
        found: list[FoundOffset] = []
        for part in slices.parts(tps, COMMITS_PER_TURN):
            found += await self._find(group, part, is_stable)
        return await slices.finish(_found_topics(named, found))

    def _all_topics(
        self, found: Sequence[FoundOffset], has_ids: bool
    ) -> Steps[list[OffsetFetchResponseTopics]]:
        known = self._state.image.topics
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for committed in found:
            yield 1
            assert committed is not None, "only committed offsets are listed"
            name, index = committed.tp
            if has_ids and name not in known:
                continue  # a deleted topic has no id any more
            topic_id: Uuid = known[name].id if name in known else NO_UUID
            topic = topics.setdefault(name, OffsetFetchResponseTopics(name=name, topic_id=topic_id))
            topic.partitions.append(_partition(index, committed))
        return list(topics.values())

    async def _find(
        self,
        group: OffsetFetchRequestGroup,
        tps: Sequence[TopicPartition] | None,
        is_stable: bool,
    ) -> Sequence[FoundOffset]:
        found: FoundOffsets = await self._coordinator.run(
            group.group_id,
            lambda groups, ticket, now_ms: groups.fetch(
                ticket,
                group.group_id,
                tps,
                is_stable=is_stable,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
            ),
        )
        if isinstance(found, ErrorCode):
            raise _NOT_MEMBERS[found]
        return found


Named = list[tuple[OffsetFetchRequestTopics, str | None]]  # None: no topic has this id


def _partitions(named: Named) -> Steps[list[TopicPartition]]:
    """The partitions of topics that exist, in the order of the request."""
    tps = []
    for topic, name in named:
        if name is not None:
            tps += [TopicPartition(name, index) for index in topic.partition_indexes]
        yield 1 + len(topic.partition_indexes) // 10
    return tps


def _found_topics(
    named: Named, found: Sequence[FoundOffset]
) -> Steps[list[OffsetFetchResponseTopics]]:
    """The result of each partition; `found` has the offsets of topics that exist."""
    topics = []
    left = iter(found)
    for topic, name in named:
        partitions: list[OffsetFetchResponsePartitions] = []
        topics.append(
            OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
        for index in topic.partition_indexes:
            partitions.append(
                _no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID)
                if name is None
                else _partition(index, next(left))
            )
            yield 1
        yield 1
    return topics


def _partition(index: int, committed: FoundOffset) -> OffsetFetchResponsePartitions:
    if committed is None:
        return _no_offset(index, ErrorCode.NONE)
    if isinstance(committed, UnstableOffset):
        return _no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _no_offset(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_EPOCH,
        metadata="",
        error_code=code,
    )


def _refused_group(
    group: OffsetFetchRequestGroup, code: ErrorCode
) -> Steps[OffsetFetchResponseGroup]:
    """The error at each partition as well: versions before 2 have no field for a group's."""
    response = OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
    for topic in group.topics or ():
        partitions: list[OffsetFetchResponsePartitions] = []
        response.topics.append(
            OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
        for index in topic.partition_indexes:
            partitions.append(_no_offset(index, code))
            yield 1
        yield 1
    return response


def _only_group(request: OffsetFetchRequest) -> Steps[OffsetFetchRequestGroup]:
    """The request of versions 1 to 7, which have one group, as one of a newer version."""
    if request.topics is None:
        return OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    topics = []
    for topic in request.topics:
        topics.append(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
        )
        yield 1
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _for_one_group(group: OffsetFetchResponseGroup) -> Steps[OffsetFetchResponse]:
    response = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        partitions: list[OffsetFetchResponsePartition] = []
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        for partition in topic.partitions:
            partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
            )
            yield 1
        yield 1
    return response


class OffsetDelete:
    def __init__(self, services: Services) -> None:
        self._coordinator = services.groups

    async def __call__(
        self, request: OffsetDeleteRequest, context: RequestContext
    ) -> OffsetDeleteResponse:
        tps = [
            TopicPartition(topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        error, errors = ErrorCode.NONE, list[ErrorCode]()
        for part in slices.parts(tps, COMMITS_PER_TURN):
            deleted = await self._delete(request.group_id, part)
            error = error or deleted.error
            errors += deleted.errors or [deleted.error] * len(part)
        return await slices.finish(_deleted(request, error, errors))

    async def _delete(self, group_id: str, tps: Sequence[TopicPartition]) -> DeletedOffsets:
        try:
            deleted: DeletedOffsets = await self._coordinator.run(
                group_id,
                lambda groups, ticket, now_ms: groups.delete_offsets(ticket, group_id, tps, now_ms),
            )
        except ApiError as refused:
            return DeletedOffsets(refused.code)
        return deleted


def _deleted(
    request: OffsetDeleteRequest, error: ErrorCode, errors: Iterable[ErrorCode]
) -> Steps[OffsetDeleteResponse]:
    left = iter(errors)
    response = OffsetDeleteResponse(error_code=error)
    for topic in request.topics:
        partitions: list[OffsetDeleteResponsePartition] = []
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        for partition in topic.partitions:
            partitions.append(
                OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index, error_code=next(left)
                )
            )
            yield 1
        yield 1
    return response
