"""Share fetches between their requests and their responses: acknowledging, acquiring, waiting."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ottla.broker.deferred import Deferred
from ottla.broker.leader_hints import HINTED_ERRORS, leader_hint
from ottla.broker.led_share_partition import LedSharePartition, Taken, Wanted
from ottla.broker.share_partitions import SharePartitions
from ottla.cluster.image import ClusterImage
from ottla.errors import ApiError
from ottla.protocol.hot_fields import LeaderHint
from ottla.protocol.hot_share import SingleShareFetched
from ottla.protocol.messages.share_groups import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareFetchPartitionResponse,
    ShareFetchResponse,
    ShareFetchTopicResponse,
)
from ottla.queues.acknowledgements import Acknowledgement
from ottla.queues.share_sessions import CLOSING, SessionKey, SharedPartition, ShareSession
from ottla.queues.share_state import SharePartitionKey

_UNKNOWN: Final = -1  # leader and epoch that are not known

Said = dict[SharedPartition, list[Acknowledgement]]
Fetched = ShareFetchResponse | SingleShareFetched


@dataclass(slots=True)
class AskedShare:
    """A ShareFetch, however it was read."""

    key: SessionKey
    epoch: int
    wait_ms_max: int
    bytes_max: int
    records_max: int
    is_strict: bool
    may_renew: bool
    said: Said  # of every partition that the request names
    removed: Sequence[SharedPartition]


class FetchResponse(Deferred["ShareExchange", Fetched]):
    """A response that later requests of its connection do not wait for."""

    __slots__ = ()
    is_barrier = False

    def build(self, value: "ShareExchange") -> Fetched:
        return value.response()

    def refuse(self, error: ApiError) -> Fetched:
        return refused_fetch(error)


class SingleResponse(FetchResponse):
    """The response to a request that was read without the codec: it may be written so as well."""

    __slots__ = ()

    def build(self, value: "ShareExchange") -> Fetched:
        return value.single_response() or value.response()


class Acknowledging:
    """The acknowledgements of one request; `on_done` is called when all are durable or refused."""

    __slots__ = ("_key", "_may_renew", "_on_done", "_open_count", "_partitions", "problems")

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
            if not acknowledgements:
                continue
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
        if not self._open_count:
            self._on_done()

    @property
    def is_done(self) -> bool:
        return self._open_count == 0


class ShareExchange:
    """A ShareFetch from its acknowledgements to its response."""

    __slots__ = (
        "_acknowledging",
        "_asked",
        "_deferred",
        "_is_fetched",
        "_is_retrying",
        "_leasing_count",
        "_partitions",
        "_problems",
        "_reading",
        "_session",
        "_taken",
        "_timer",
    )

    def __init__(
        self,
        partitions: SharePartitions,
        session: ShareSession,
        asked: AskedShare,
        deferred: FetchResponse,
    ) -> None:
        self._partitions = partitions
        self._session = session
        self._asked = asked
        self._taken: dict[SharedPartition, Taken] = {}
        self._problems: dict[SharedPartition, ApiError] = {}
        self._reading: dict[LedSharePartition, None] = {}  # those that it waits for
        self._timer: asyncio.TimerHandle | None = None
        self._is_fetched = False  # nothing more will be acquired
        self._leasing_count = 0  # partitions whose leases are not written yet
        self._is_retrying = False
        self._acknowledging = Acknowledging(
            partitions, asked.key, self._respond, may_renew=asked.may_renew
        )
        self._deferred = deferred

    def begin(self) -> Fetched | FetchResponse:
        acknowledging, asked = self._acknowledging, self._asked
        acknowledging.begin(asked.said)
        if asked.epoch == CLOSING:
            close_session(self._partitions, self._session)
            self._is_fetched = True
        elif asked.records_max <= 0 or asked.bytes_max <= 0:
            self._is_fetched = True
        else:
            self._fetch()
            if not self._is_fetched:
                self._wait()
        acknowledging.end()
        return self._deferred.message() if self._deferred.is_ready else self._deferred

    def _fetch(self) -> None:
        """Acquire what there is; the fetch is done if that is something, or an error."""
        asked, session, partitions = self._asked, self._session, self._partitions
        group_id, member_id = session.key
        left_records, is_strict = asked.records_max, asked.is_strict
        left_bytes = min(asked.bytes_max, partitions.bytes_max)
        for partition in list(session.partitions):
            try:
                led = partitions.find(SharePartitionKey(group_id, *partition))
                has_others = bool(self._taken)
                wanted = Wanted(left_records, left_bytes, is_strict, has_others)
                taken = led.acquire(member_id, wanted)
                if led.problem is not None:
                    raise led.problem
            except ApiError as refused:
                self._problems[partition] = refused
                continue
            if taken is None:
                continue
            self._taken[partition] = taken
            records, acquired, is_alone, is_leased = taken
            if is_leased:
                self._leasing_count += 1
                led.persist(partial(self._note_leased, partition))
            session.end_turn(partition)
            for first, last, _ in acquired:
                left_records -= last - first + 1
            left_bytes -= len(records)
            if is_alone or left_records <= 0 or left_bytes <= 0:
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
        wait_ms = min(self._asked.wait_ms_max, self._partitions.wait_max_ms)
        if wait_ms <= 0:
            self._is_fetched = True
            return
        self._listen()
        self._timer = self._partitions.loop.call_later(wait_ms / 1000, self.end_wait)
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
            self._partitions.loop.call_soon(self._retry)

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
        if self._leasing_count or not (self._is_fetched and self._acknowledging.is_done):
            return
        if not self._deferred.is_ready:
            self._deferred.deliver(self)

    @property
    def _lock_ms(self) -> int:
        return self._partitions.settings_of(self._asked.key.group_id).limits.lock_ms

    def single_response(self) -> SingleShareFetched | None:
        """The response, if it is about one partition and nothing went wrong there."""
        taken, acknowledged = self._taken, self._acknowledging.problems
        if self._problems or len(taken) > 1 or len(acknowledged) > 1:
            return None
        for partition in taken or acknowledged:
            if acknowledged and (partition not in acknowledged or acknowledged[partition]):
                return None
            topic_id, index = partition
            if not taken:
                return SingleShareFetched(self._lock_ms, topic_id, index, b"", ())
            records, acquired, _, _ = taken[partition]
            return SingleShareFetched(self._lock_ms, topic_id, index, records, acquired)
        return None

    def response(self) -> ShareFetchResponse:
        acknowledged = self._acknowledging.problems
        hints = LeaderHints(self._partitions.image)
        topics: dict[bytes, ShareFetchTopicResponse] = {}
        for partition in dict.fromkeys((*self._taken, *self._problems, *acknowledged)):
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = ShareFetchTopicResponse(topic_id=partition.topic_id)
                topics[partition.topic_id] = topic
            topic.partitions.append(
                self._partition_response(partition, acknowledged.get(partition), hints)
            )
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self._lock_ms,
            responses=list(topics.values()),
            node_endpoints=hints.endpoints(),
        )

    def _partition_response(
        self, partition: SharedPartition, acknowledgement: ApiError | None, hints: "LeaderHints"
    ) -> ShareFetchPartitionResponse:
        problem, taken = self._problems.get(partition), self._taken.get(partition)
        return ShareFetchPartitionResponse(
            partition_index=partition.partition,
            error_code=0 if problem is None else problem.code,
            error_message=None if problem is None else str(problem),
            acknowledge_error_code=0 if acknowledgement is None else acknowledgement.code,
            acknowledge_error_message=None if acknowledgement is None else str(acknowledgement),
            current_leader=hints.leader(partition, problem or acknowledgement),
            records=b"" if taken is None else taken.records,
            acquired_records=[
                AcquiredRecords(
                    first_offset=one.first, last_offset=one.last, delivery_count=one.deliveries
                )
                for one in (() if taken is None else taken.acquired)
            ],
        )


class LeaderHints:
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


def refused_fetch(error: ApiError) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=error.code, error_message=str(error))


def end_wait(partitions: SharePartitions, key: SessionKey) -> None:
    """Respond to the member's last fetch, if it still waits."""
    end = partitions.waiting.get(key)
    if end is not None:
        end()


def close_session(partitions: SharePartitions, session: ShareSession) -> None:
    """A member that closes its session gives back what it has not looked at."""
    partitions.sessions.close(session.key)
    partitions.end_session(session, counts=False)
