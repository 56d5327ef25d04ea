"""ShareFetch (78) 1-2, ShareAcknowledge (79) 1-2: long poll, share sessions, both acquire modes.

The response to acknowledgements is sent when their effect is durable. A fetch that waits is
answered when there are records, when its time is over, or when its member sends another request:
an acknowledgement must not wait behind a long poll. Any record is enough: MinBytes is not waited
for. BatchSize is not needed: acquired records are reported in as few ranges as possible.
A ShareFetch of one partition may come and go without the generic codec (docs/adr/0043); all that is
done for it is the same.
"""

from typing import TYPE_CHECKING, Final

from ottla.broker.deferred import Deferred
from ottla.broker.services import RequestContext, Services
from ottla.broker.share_exchange import (
    Acknowledging,
    AskedShare,
    Fetched,
    FetchResponse,
    LeaderHints,
    ShareExchange,
    SingleResponse,
    close_session,
    end_wait,
    refused_fetch,
)
from ottla.broker.share_partitions import SharePartitions
from ottla.errors import ApiError, InvalidRequest
from ottla.model import Offset
from ottla.protocol.hot_share import SingleShareFetch
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartitionResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchRequest,
)
from ottla.queues.acknowledgements import Acknowledgement
from ottla.queues.errors import InvalidShareSessionEpoch
from ottla.queues.share_sessions import CLOSING, OPENING, SessionKey, SharedPartition, ShareSession
from ottla.queues.share_state import SharePartitionKey

if TYPE_CHECKING:
    from ottla.broker.connection import Connection

_STRICT: Final = 1  # ShareAcquireMode: no more records than asked for


class _AcknowledgeResponse(Deferred[ShareAcknowledgeResponse, ShareAcknowledgeResponse]):
    __slots__ = ()

    def build(self, value: ShareAcknowledgeResponse) -> ShareAcknowledgeResponse:
        return value

    def refuse(self, error: ApiError) -> ShareAcknowledgeResponse:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=str(error))


class ShareFetch:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: ShareFetchRequest, context: RequestContext
    ) -> Fetched | FetchResponse:
        try:
            return self._begin(_asked(request), context.connection, FetchResponse())
        except ApiError as refused:
            return refused_fetch(refused)

    def take_single(
        self, request: SingleShareFetch, connection: "Connection | None"
    ) -> Fetched | FetchResponse:
        """The same for a request that was read without the codec."""
        try:
            return self._begin(_asked_single(request), connection, SingleResponse())
        except ApiError as refused:
            return refused_fetch(refused)

    def _begin(
        self, asked: AskedShare, connection: "Connection | None", deferred: FetchResponse
    ) -> Fetched | FetchResponse:
        """Raises an ApiError that refuses the whole request, and nothing has been done."""
        if asked.epoch == OPENING and any(asked.said.values()):
            raise InvalidRequest("a request that opens a share session acknowledges nothing")
        partitions = self._services.share_partitions
        session = self._session(partitions, asked, connection)
        return ShareExchange(partitions, session, asked, deferred).begin()

    def _session(
        self, partitions: SharePartitions, asked: AskedShare, connection: "Connection | None"
    ) -> ShareSession:
        sessions, key, epoch = partitions.sessions, asked.key, asked.epoch
        end_wait(partitions, key)
        if epoch == OPENING:
            session = sessions.open(
                key, connection, self._services.settings.broker.share_sessions_max
            )
            _watch_connection(partitions, connection)
        else:
            session = sessions.advance(key, epoch)
        if epoch != CLOSING:
            sessions.update(session, asked.said, asked.removed)
            if epoch == OPENING:
                for partition in session.partitions:
                    partitions.check_state(SharePartitionKey(key.group_id, *partition))
            for partition in asked.removed:
                partitions.forget_unused(key.group_id, partition)
        return session


class ShareAcknowledge:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> ShareAcknowledgeResponse | _AcknowledgeResponse:
        try:
            key = _session_key(request.group_id, request.member_id)
            if request.share_session_epoch == OPENING:
                raise InvalidShareSessionEpoch("a share session is opened by a fetch")
            partitions = self._services.share_partitions
            end_wait(partitions, key)
            session = partitions.sessions.advance(key, request.share_session_epoch)
        except ApiError as refused:
            return ShareAcknowledgeResponse(error_code=refused.code, error_message=str(refused))
        said = {
            SharedPartition(topic.topic_id, partition.partition_index): _said(
                partition.acknowledgement_batches
            )
            for topic in request.topics
            for partition in topic.partitions
        }
        deferred = _AcknowledgeResponse()
        lock_ms = partitions.settings_of(key.group_id).limits.lock_ms

        def respond() -> None:
            hints = LeaderHints(partitions.image)
            deferred.deliver(_acknowledged(acknowledging.problems, lock_ms, hints))

        acknowledging = Acknowledging(partitions, key, respond, may_renew=request.is_renew_ack)
        acknowledging.begin(said)
        if request.share_session_epoch == CLOSING:
            close_session(partitions, session)
        acknowledging.end()
        return deferred.message() if deferred.is_ready else deferred


def _acknowledged(
    problems: dict[SharedPartition, ApiError | None], lock_ms: int, hints: "LeaderHints"
) -> ShareAcknowledgeResponse:
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for partition, problem in problems.items():
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = ShareAcknowledgeTopicResponse(topic_id=partition.topic_id)
            topics[partition.topic_id] = topic
        topic.partitions.append(
            ShareAcknowledgePartitionResponse(
                partition_index=partition.partition,
                error_code=0 if problem is None else problem.code,
                error_message=None if problem is None else str(problem),
                current_leader=hints.leader(partition, problem),
            )
        )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=list(topics.values()),
        node_endpoints=hints.endpoints(),
    )


def _session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    if not group_id or not member_id:
        raise InvalidRequest("a group id and a member id must be given")
    return SessionKey(group_id, member_id)


def _asked(request: ShareFetchRequest) -> AskedShare:
    if request.is_renew_ack and (
        request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    ):
        raise InvalidRequest("a request that renews records fetches none: its limits must be 0")
    return AskedShare(
        _session_key(request.group_id, request.member_id),
        request.share_session_epoch,
        request.max_wait_ms,
        request.max_bytes,
        request.max_records,
        request.share_acquire_mode == _STRICT,
        request.is_renew_ack,
        {
            SharedPartition(topic.topic_id, partition.partition_index): _said(
                partition.acknowledgement_batches
            )
            for topic in request.topics
            for partition in topic.partitions
        },
        [
            SharedPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ],
    )


def _asked_single(request: SingleShareFetch) -> AskedShare:
    group_id, member_id, epoch, wait_ms, bytes_max, records_max, mode, topic_id, index, said = (
        request
    )
    acknowledgements = []
    if said is not None:
        first, last, kind = said
        acknowledgements.append(Acknowledgement(Offset(first), Offset(last), (kind,)))
    return AskedShare(
        SessionKey(group_id, member_id),
        epoch,
        wait_ms,
        bytes_max,
        records_max,
        mode == _STRICT,
        False,
        {SharedPartition(topic_id, index): acknowledgements},
        (),
    )


def _said(batches: list[AcknowledgementBatch]) -> list[Acknowledgement]:
    return [
        Acknowledgement(
            Offset(batch.first_offset),
            Offset(batch.last_offset),
            batch.acknowledge_types,
            batch.retry_delay_ms,
            batch.is_uncounted,
            batch.reason,
        )
        for batch in batches
    ]


def _watch_connection(partitions: SharePartitions, connection: "Connection | None") -> None:
    if connection is None:
        return

    def end_sessions() -> None:
        """Release the records of a vanished member; they count, for one may have killed it."""
        for session in partitions.sessions.close_connection(connection):
            end_wait(partitions, session.key)
            partitions.end_session(session, counts=True)

    connection.on_lost(end_sessions)
