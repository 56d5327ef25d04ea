"""ShareFetch (78) 1-2, ShareAcknowledge (79) 1-2: long poll, share sessions, both acquire modes.

The response to acknowledgements is sent when their effect is durable. A fetch that waits is
answered when there are records, when its time is over, or when its member sends another request:
an acknowledgement must not wait behind a long poll. Any record is enough: MinBytes is not waited
for. BatchSize is not needed: acquired records are reported in as few ranges as possible.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ottla.broker.deferred import Deferred
from ottla.broker.leader_hints import HINTED_ERRORS, leader_hint
from ottla.broker.led_share_partition import LedSharePartition, Taken, Wanted
from ottla.broker.services import RequestContext, Services
from ottla.broker.share_partitions import SharePartitions
from ottla.cluster.image import ClusterImage
from ottla.errors import ApiError, InvalidRequest
from ottla.model import Offset
from ottla.protocol.hot_fields import LeaderHint
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareAcknowledgePartitionResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchPartitionResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopicResponse,
)
from ottla.queues.acknowledgements import Acknowledgement
from ottla.queues.errors import InvalidShareSessionEpoch
from ottla.queues.share_sessions import (
    CLOSING,
    OPENING,
    SessionKey,
    SharedPartition,
    ShareSession,
)
from ottla.queues.share_state import SharePartitionKey

_STRICT: Final = 1  # ShareAcquireMode: no more records than asked for
_UNKNOWN: Final = -1  # leader and epoch that are not known

Said = dict[SharedPartition, list[Acknowledgement]]


class _FetchResponse(Deferred[ShareFetchResponse, ShareFetchResponse]):
    """A response that later requests of its connection do not wait for."""

    __slots__ = ()
    is_barrier = False

    def build(self, value: ShareFetchResponse) -> ShareFetchResponse:
        return value

    def refuse(self, error: ApiError) -> ShareFetchResponse:
        return ShareFetchResponse(error_code=error.code, error_message=str(error))


class _AcknowledgeResponse(Deferred[ShareAcknowledgeResponse, ShareAcknowledgeResponse]):
    __slots__ = ()

    def build(self, value: ShareAcknowledgeResponse) -> ShareAcknowledgeResponse:
        return value

    def refuse(self, error: ApiError) -> ShareAcknowledgeResponse:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=str(error))


class _Acknowledging:
    """The acknowledgements of one request; `on_done` is called when all are durable or refused."""

    def __init__(
        self,
        partitions: SharePartitions,
        key: SessionKey,
        on_done: Callable[[], None],
        *,
        may_renew: bool,
    ) -> None:
        self._partitions = partitions
        self._key = key
        self._may_renew = may_renew
        self._on_done = on_done
        self._open_count = 1  # until `begin` has gone through all of them
        self.problems: dict[SharedPartition, ApiError | None] = {}

    def begin(self, said: Said) -> None:
        group_id, member_id = self._key
        for partition, acknowledgements in said.items():
            self.problems[partition] = None
            self._open_count += 1
            try:
                led = self._partitions.find_acquired(SharePartitionKey(group_id, *partition))
                led.acknowledge(
                    member_id,
                    acknowledgements,
                    partial(self._end, partition),
                    may_renew=self._may_renew,
                )
            except ApiError as refused:
                self._end(partition, refused)

    def _end(self, partition: SharedPartition, problem: ApiError | None) -> None:
        self.problems[partition] = problem
        self.end()

    def end(self) -> None:
        self._open_count -= 1
        if self.is_done:
            self._on_done()

    @property
    def is_done(self) -> bool:
        return self._open_count == 0


class ShareFetch:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: ShareFetchRequest, context: RequestContext
    ) -> ShareFetchResponse | _FetchResponse:
        try:
            key = _session_key(request.group_id, request.member_id)
            said = {
                SharedPartition(topic.topic_id, partition.partition_index): _said(
                    partition.acknowledgement_batches
                )
                for topic in request.topics
                for partition in topic.partitions
            }
            _check_fetch(request, said)
            partitions = self._services.share_partitions
            session = self._session(partitions, key, request, context, said)
        except ApiError as refused:
            return ShareFetchResponse(error_code=refused.code, error_message=str(refused))
        exchange = _Exchange(partitions, session, request)
        return exchange.begin({p: batches for p, batches in said.items() if batches})

    def _session(
        self,
        partitions: SharePartitions,
        key: SessionKey,
        request: ShareFetchRequest,
        context: RequestContext,
        said: Iterable[SharedPartition],
    ) -> ShareSession:
        sessions, epoch = partitions.sessions, request.share_session_epoch
        removed = [
            SharedPartition(topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        _end_wait(partitions, key)
        if epoch == OPENING:
            session = sessions.open(
                key, context.connection, self._services.settings.broker.share_sessions_max
            )
            _watch_connection(partitions, context)
        else:
            session = sessions.advance(key, epoch)
        if epoch != CLOSING:
            sessions.update(session, said, removed)
            if epoch == OPENING:
                for partition in session.partitions:
                    partitions.check_state(SharePartitionKey(key.group_id, *partition))
            for partition in removed:
                partitions.forget_unused(key.group_id, partition)
        return session


class _Exchange:
    """A ShareFetch from its acknowledgements to its response."""

    def __init__(
        self, partitions: SharePartitions, session: ShareSession, request: ShareFetchRequest
    ) -> None:
        self._partitions = partitions
        self._session = session
        self._request = request
        self._hints = _Hints(partitions.image)
        self._loop = asyncio.get_running_loop()
        self._taken: dict[SharedPartition, Taken] = {}
        self._problems: dict[SharedPartition, ApiError] = {}
        self._reading: dict[LedSharePartition, None] = {}  # those that it waits for
        self._timer: asyncio.TimerHandle | None = None
        self._is_fetched = False  # nothing more will be acquired
        self._leasing_count = 0  # partitions whose leases are not written yet
        self._is_retrying = False
        self._acknowledging = _Acknowledging(
            partitions, session.key, self._respond, may_renew=request.is_renew_ack
        )
        self._deferred = _FetchResponse()

    def begin(self, said: Said) -> "ShareFetchResponse | _FetchResponse":
        acknowledging, request = self._acknowledging, self._request
        acknowledging.begin(said)
        if request.share_session_epoch == CLOSING:
            _close_session(self._partitions, self._session)
            self._is_fetched = True
        elif request.max_records <= 0 or request.max_bytes <= 0:
            self._is_fetched = True
        else:
            self._fetch()
            if not self._is_fetched:
                self._wait()
        acknowledging.end()
        return self._deferred.message() if self._deferred.is_ready else self._deferred

    def _fetch(self) -> None:
        """Acquire what there is; the fetch is done if that is something, or an error."""
        request, session = self._request, self._session
        left_records = request.max_records
        left_bytes = min(request.max_bytes, self._partitions.bytes_max)
        for partition in list(session.partitions):
            is_strict = request.share_acquire_mode == _STRICT
            wanted = Wanted(left_records, left_bytes, is_strict, has_others=bool(self._taken))
            try:
                led = self._partitions.find(SharePartitionKey(session.key.group_id, *partition))
                taken = led.acquire(session.key.member_id, wanted)
                if led.problem is not None:
                    raise led.problem
            except ApiError as refused:
                self._problems[partition] = refused
                continue
            if taken is None:
                continue
            self._taken[partition] = taken
            if taken.is_leased:
                self._leasing_count += 1
                led.persist(partial(self._note_leased, partition))
            session.end_turn(partition)
            for one in taken.acquired:
                left_records -= one.last - one.first + 1
            left_bytes -= len(taken.records)
            if taken.is_alone or left_records <= 0 or left_bytes <= 0:
                break
        self._is_fetched = bool(self._taken or self._problems)

    def _note_leased(self, partition: SharedPartition, problem: ApiError | None) -> None:
        self._leasing_count -= 1
        if problem is not None:
            del self._taken[partition]
            self._problems[partition] = problem
        self._respond()

    # Waiting

    def _wait(self) -> None:
        wait_ms = min(self._request.max_wait_ms, self._partitions.wait_max_ms)
        if wait_ms <= 0:
            self._is_fetched = True
            return
        self._listen()
        self._timer = self._loop.call_later(wait_ms / 1000, self.end_wait)
        self._partitions.waiting[self._session.key] = self.end_wait

    def _listen(self) -> None:
        """Be called when one of the partitions has more to acquire."""
        for partition in self._session.partitions:
            try:
                led = self._partitions.find(
                    SharePartitionKey(self._session.key.group_id, *partition)
                )
            except ApiError:
                self._wake()  # the next try has the error
                continue
            if led not in self._reading:
                self._reading[led] = None
                led.waiting[self._wake] = None
                led.partition.add_reader(self._wake)

    def _wake(self) -> None:
        if not self._is_retrying and not self._is_fetched:
            self._is_retrying = True
            self._loop.call_soon(self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._is_fetched:
            return
        for led in self._reading:
            if led.problem is not None:
                key = led.key
                self._problems[SharedPartition(key.topic_id, key.partition)] = led.problem
        if not self._problems:
            self._fetch()
        if self._problems:
            self._is_fetched = True
        if self._is_fetched:
            self.end_wait()
        else:
            self._listen()

    def end_wait(self) -> None:
        """Respond with what was acquired, if anything."""
        self._is_fetched = True
        if self._timer is not None:
            self._timer.cancel()
        if self._partitions.waiting.get(self._session.key) == self.end_wait:
            del self._partitions.waiting[self._session.key]
        for led in self._reading:
            led.waiting.pop(self._wake, None)
            led.partition.remove_reader(self._wake)
        self._reading.clear()
        self._respond()

    # Responding

    def _respond(self) -> None:
        is_done = self._is_fetched and self._acknowledging.is_done and not self._leasing_count
        if is_done and not self._deferred.is_ready:
            self._deferred.deliver(self._response())

    def _response(self) -> ShareFetchResponse:
        topics: dict[bytes, ShareFetchTopicResponse] = {}
        problems = self._acknowledging.problems
        for partition in dict.fromkeys((*self._taken, *self._problems, *problems)):
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = ShareFetchTopicResponse(topic_id=partition.topic_id)
                topics[partition.topic_id] = topic
            topic.partitions.append(self._partition_response(partition, problems.get(partition)))
        settings = self._partitions.settings_of(self._session.key.group_id)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=settings.limits.lock_ms,
            responses=list(topics.values()),
            node_endpoints=self._hints.endpoints(),
        )

    def _partition_response(
        self, partition: SharedPartition, acknowledgement: ApiError | None
    ) -> ShareFetchPartitionResponse:
        problem, taken = self._problems.get(partition), self._taken.get(partition)
        return ShareFetchPartitionResponse(
            partition_index=partition.partition,
            error_code=0 if problem is None else problem.code,
            error_message=None if problem is None else str(problem),
            acknowledge_error_code=0 if acknowledgement is None else acknowledgement.code,
            acknowledge_error_message=None if acknowledgement is None else str(acknowledgement),
            current_leader=self._hints.leader(partition, problem or acknowledgement),
            records=b"" if taken is None else taken.records,
            acquired_records=[
                AcquiredRecords(
                    first_offset=one.first, last_offset=one.last, delivery_count=one.deliveries
                )
                for one in (() if taken is None else taken.acquired)
            ],
        )


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
            _end_wait(partitions, key)
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
            hints = _Hints(partitions.image)
            deferred.deliver(_acknowledged(acknowledging.problems, lock_ms, hints))

        acknowledging = _Acknowledging(partitions, key, respond, may_renew=request.is_renew_ack)
        acknowledging.begin(said)
        if request.share_session_epoch == CLOSING:
            _close_session(partitions, session)
        acknowledging.end()
        return deferred.message() if deferred.is_ready else deferred


def _acknowledged(
    problems: dict[SharedPartition, ApiError | None], lock_ms: int, hints: "_Hints"
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


class _Hints:
    """Leaders of the partitions in a response that are not led here (KIP-951)."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._found: dict[int, LeaderHint] = {}

    def leader(self, partition: SharedPartition, problem: ApiError | None) -> LeaderIdAndEpoch:
        hint = None
        if problem is not None and problem.code in HINTED_ERRORS:
            hint = leader_hint(self._image(), partition.topic_id, partition.partition)
        if hint is None:
            return LeaderIdAndEpoch(leader_id=_UNKNOWN, leader_epoch=_UNKNOWN)
        self._found[hint.broker_id] = hint
        return LeaderIdAndEpoch(leader_id=hint.broker_id, leader_epoch=hint.epoch)

    def endpoints(self) -> list[NodeEndpoint]:
        return [
            NodeEndpoint(node_id=hint.broker_id, host=hint.host, port=hint.port, rack=hint.rack)
            for hint in self._found.values()
        ]


def _session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    if not group_id or not member_id:
        raise InvalidRequest("a group id and a member id must be given")
    return SessionKey(group_id, member_id)


def _check_fetch(request: ShareFetchRequest, said: Said) -> None:
    if request.share_session_epoch == OPENING and any(said.values()):
        raise InvalidRequest("a request that opens a share session acknowledges nothing")
    if request.is_renew_ack and (
        request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms
    ):
        raise InvalidRequest("a request that renews records fetches none: its limits must be 0")


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


def _end_wait(partitions: SharePartitions, key: SessionKey) -> None:
    """Respond to the member's last fetch, if it still waits."""
    end = partitions.waiting.get(key)
    if end is not None:
        end()


def _watch_connection(partitions: SharePartitions, context: RequestContext) -> None:
    connection = context.connection
    if connection is None:
        return

    def end_sessions() -> None:
        """Release the records of a vanished member; they count, for one may have killed it."""
        for session in partitions.sessions.close_connection(connection):
            _end_wait(partitions, session.key)
            partitions.end_session(session, counts=True)

    connection.on_lost(end_sessions)


def _close_session(partitions: SharePartitions, session: ShareSession) -> None:
    """A member that closes its session gives back what it has not looked at."""
    partitions.sessions.close(session.key)
    partitions.end_session(session, counts=False)
