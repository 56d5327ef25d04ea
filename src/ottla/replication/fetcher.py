"""Fetching from one leader: all partitions that this broker follows there, in one request.

One request is under way at a time. What it brings is appended and, where that is promised, brought
to disk before the next one, because the offset of a fetch is an acknowledgement: everything below
is there. A fetch session (KIP-227) keeps requests small: only what changed is sent again, and only
partitions that may have changed are looked at, however many there are.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ottla.client.connection import Connection
from ottla.client.errors import ClientError, Unreachable
from ottla.clock import Clock
from ottla.cluster.values import BrokerImage
from ottla.config import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.model import BrokerId, Endpoint, TimestampMs, Uuid
from ottla.protocol.hot_fetch import NO_WATERMARK
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.replication.catch_up import CatchUpBudget
from ottla.replication.counts import ReplicationCounts
from ottla.replication.cutting import BegunCut
from ottla.replication.follower import FollowerPartition, LeaderContact, ReplicaDiverged
from ottla.replication.peer_deaths import PeerDeaths
from ottla.replication.peers import connect_peer
from ottla.storage.log_cut import Cut

log = logging.getLogger("ottla.replication")

_RETRY_MIN_S: Final = 0.05
_RETRY_MAX_S: Final = 1.0
_PARTITION_RETRY_S: Final = 0.1
_SYNC_S: Final = 0.01  # after that it is looked whether a log is on disk
_CUT_S: Final = 0.05  # after that it is looked whether a log has been cut
_CUTS_PER_TURN: Final = 32  # of the loop
_REST_MAX_S: Final = 0.1
_NO_SESSION: Final = (0, 0)
_EPOCH_MAX: Final = 2**31 - 1
_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)

PartitionKey = tuple[Uuid, int]  # topic id and number


class _Changes(NamedTuple):
    """How the next request differs from what the leader's session has."""

    changed: dict[PartitionKey, FetchPartition]
    forgotten: list[PartitionKey]
    retry_s: float | None  # when the first partition that has to wait may be fetched


class FetcherEnvironment(NamedTuple):
    """The broker, as far as its fetchers use it."""

    clock: Clock
    rng: random.Random
    config: Callable[[], BrokerConfig]
    registration: Callable[[], BrokerImage | None]  # None while it is not known to be ready
    endpoint_of: Callable[[BrokerId], Endpoint | None]
    make_durable: Callable[[Iterable[FollowerPartition]], "asyncio.Future[None]"]
    cut: Callable[[Sequence[BegunCut]], None]
    note_defect: Callable[[FollowerPartition, Exception], None]
    deaths: PeerDeaths
    counts: ReplicationCounts
    catch_up: CatchUpBudget  # of all fetchers together


class ReplicaFetcher:
    """Follows the partitions of one leader, in a task of its own."""

    def __init__(self, leader: BrokerId, environment: FetcherEnvironment) -> None:
        self.leader = leader
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionKey, FollowerPartition] = {}
        self._changed = asyncio.Event()
        self._rest_s = _SYNC_S  # until there may be something to fetch
        self._contact = LeaderContact()
        self._session = _NO_SESSION  # its id, and the epoch of the next request
        self._sent: dict[PartitionKey, FetchPartition] = {}  # the leader's session has these
        self.task = self._loop.create_task(self._run(), name=f"ottla-fetch-{leader}")

    @property
    def is_idle(self) -> bool:
        return not self._partitions

    def add(self, partition: FollowerPartition) -> None:
        partition.contact = self._contact
        self._partitions[_key(partition)] = partition
        self._contact.due[partition] = None
        self._changed.set()

    def remove(self, partition: FollowerPartition) -> None:
        """Stop following; what is under way for it is ignored."""
        if self._partitions.get(_key(partition)) is partition:
            del self._partitions[_key(partition)]
            self._contact.due[partition] = None  # the leader's session has to forget it

    async def _run(self) -> None:
        pause_s = _RETRY_MIN_S
        while True:
            endpoint = self._environment.endpoint_of(self.leader)
            if endpoint is not None and self._partitions:
                try:
                    if await self._follow(endpoint):
                        pause_s = _RETRY_MIN_S
                        continue
                except ClientError as problem:
                    extra = {"leader": self.leader, "reason": problem}
                    log.info("replica fetch failed", extra=extra)
                    is_refused = isinstance(problem, Unreachable) and problem.is_refused
                    if is_refused and await self._environment.deaths.note_refused(self.leader):
                        pause_s = _RETRY_MIN_S
            # Spread: all followers of a broker that went away would return at the same time.
            await asyncio.sleep(pause_s * self._environment.rng.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, _RETRY_MAX_S)

    async def _follow(self, endpoint: Endpoint) -> bool:
        """Fetch over one connection until it ends or the partitions change; True if it worked."""
        timeout_s = self._environment.config().replica_lag_time_max_ms / 1000
        connection = await connect_peer(endpoint, timeout_s)
        self._environment.deaths.note_reached(self.leader)
        self._begin_session()
        has_fetched = False
        try:
            while self._partitions and self._environment.endpoint_of(self.leader) == endpoint:
                self._changed.clear()
                request = self._request()
                if request is None:
                    await self._rest()
                    continue
                response = await self._fetch(connection, request, timeout_s)
                if response is None:
                    break
                if response.error_code in _SESSION_ERRORS:
                    self._begin_session()
                    continue
                if response.error_code:
                    return False
                has_fetched = True
                self._contact.heard_s = self._environment.clock.monotonic_s()
                await self._take(response)
            return has_fetched
        finally:
            connection.close()

    async def _rest(self) -> None:
        """Wait for another partition, or until one may be fetched again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s):
                await self._changed.wait()

    async def _fetch(
        self, connection: Connection, request: FetchRequest, timeout_s: float
    ) -> FetchResponse | None:
        """The response; None if there is another partition before it comes.

        The leader would let it wait for as long as there is nothing new in the others.
        """
        sending = self._loop.create_task(
            connection.send(
                request, FetchResponse, timeout_s=request.max_wait_ms / 1000 + timeout_s
            )
        )
        changing = self._loop.create_task(self._changed.wait())
        try:
            await asyncio.wait({sending, changing}, return_when=asyncio.FIRST_COMPLETED)
            return await sending if sending.done() else None
        finally:
            changing.cancel()
            sending.cancel()

    def _begin_session(self) -> None:
        """The leader has no session of this fetcher: the next request names every partition."""
        self._session, self._sent = _NO_SESSION, {}
        self._contact.due.clear()
        self._contact.due.update(dict.fromkeys(self._partitions.values()))

    def _request(self) -> FetchRequest | None:
        """The next request; None while there is nothing to fetch, or this broker is not ready."""
        registration = self._environment.registration()
        if registration is None:
            self._rest_s = _SYNC_S
            return None
        now_s, config = self._environment.clock.monotonic_s(), self._environment.config()
        changed, forgotten, retry_s = self._changes(now_s, config)
        if not self._sent:
            next_s = _SYNC_S if retry_s is None else retry_s - now_s
            self._rest_s = min(max(next_s, _SYNC_S), _REST_MAX_S)
            return None
        session_id, session_epoch = self._session
        wait_ms = config.replica_fetch_wait_max_ms
        if retry_s is not None:
            wait_ms = min(wait_ms, max(int((retry_s - now_s) * 1000), 1))
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=registration.id, replica_epoch=registration.epoch
            ),
            replica_token=Uuid(registration.token),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=[index])
                for topic_id, index in forgotten
            ],
        )

    def _changes(self, now_s: float, config: BrokerConfig) -> _Changes:
        """The changes that the leader's session lacks. Only partitions that are due are looked at.

        One that has to wait is forgotten by the session meanwhile, and stays due.
        """
        due = self._contact.due
        changed: dict[PartitionKey, FetchPartition] = {}
        forgotten: list[PartitionKey] = []
        retry_s: float | None = None
        catch_up_s = now_s + self._environment.catch_up.wait_s(config.catch_up_bytes_per_s, now_s)
        if catch_up_s > now_s:
            due.update((one, None) for one in self._partitions.values() if not one.is_in_sync)
        for partition in list(due):
            key = _key(partition)
            if self._partitions.get(key) is not partition:
                del due[partition]
                if key not in self._partitions and self._sent.pop(key, None) is not None:
                    forgotten.append(key)
                continue
            fetch_s = self._fetch_s(partition, now_s, catch_up_s)
            if fetch_s > now_s:
                retry_s = min(retry_s or fetch_s, fetch_s)
                if self._sent.pop(key, None) is not None:
                    forgotten.append(key)
                continue
            want = partition.request(now_s)
            if self._sent.get(key) != want:
                self._sent[key] = changed[key] = want
            if want.high_watermark == NO_WATERMARK:
                del due[partition]  # else it says what it knows, and that changes
        return _Changes(changed, forgotten, retry_s)

    def _fetch_s(self, partition: FollowerPartition, now_s: float, catch_up_s: float) -> float:
        """When a partition may be fetched next."""
        if partition.is_being_cut:
            return now_s + _CUT_S
        if partition.promised_end < partition.log.end_offset:  # written for another leader
            self._environment.make_durable([partition])
            partition.retry_s = now_s + _SYNC_S
        if partition.is_in_sync:
            return partition.retry_s
        return max(partition.retry_s, catch_up_s)

    async def _take(self, response: FetchResponse) -> None:
        """Append what came, and bring to disk what the next fetch will acknowledge.

        Logs that are to be cut are cut meanwhile, and their partitions fetched again behind that.
        """
        _, epoch = self._session
        self._session = (response.session_id, epoch % _EPOCH_MAX + 1)
        sent = self._sent
        if not response.session_id:
            self._begin_session()
        now_ms = self._environment.clock.now_ms()
        grown: list[FollowerPartition] = []
        cuts: list[BegunCut] = []
        for partition, fetched in self._current(response, sent):
            size_bytes = len(fetched.records or b"")
            if self._take_one(partition, fetched, now_ms, cuts):
                grown.append(partition)
            if not partition.is_in_sync:
                self._environment.catch_up.take(size_bytes)
            self._environment.counts.fetched_bytes[self.leader] += size_bytes
            if len(cuts) >= _CUTS_PER_TURN:  # of which each reads a little from the disk
                self._environment.cut(cuts)
                cuts = []
                await asyncio.sleep(0)
        if cuts:
            self._environment.cut(cuts)
        grown = list(filter(self._is_followed, grown))
        if grown:
            await self._environment.make_durable(grown)

    def _current(
        self, response: FetchResponse, sent: dict[PartitionKey, FetchPartition]
    ) -> Iterator[tuple[FollowerPartition, FetchPartitionResponse]]:
        """The parts of a response to what their partitions would request now.

        Another may be led in another epoch since the request was sent.
        """
        for topic in response.responses:
            for fetched in topic.partitions:
                key = (topic.topic_id, fetched.partition_index)
                partition = self._partitions.get(key)
                if partition is None:
                    continue
                self._contact.due[partition] = None
                if _is_current(partition, sent.get(key)):
                    yield partition, fetched

    def _take_one(
        self,
        partition: FollowerPartition,
        fetched: FetchPartitionResponse,
        now_ms: TimestampMs,
        cuts: list[BegunCut],
    ) -> bool:
        """Append what came for a partition, or begin to cut its log; True if it has grown."""
        try:
            cut = partition.begin_cut(fetched, now_ms)
            if cut is not None:
                ended = partial(self._end_cut, partition, cut, fetched)
                cuts.append(BegunCut(partition.log, cut, ended))
            elif fetched.error_code:
                self._delay(partition, ErrorCode(fetched.error_code).name)
            else:
                return partition.take(fetched, now_ms)
        except ReplicaDiverged as defect:
            self._environment.note_defect(partition, defect)
        except ApiError as problem:
            self._delay(partition, str(problem))
        return False

    def _end_cut(
        self, partition: FollowerPartition, cut: Cut, fetched: FetchPartitionResponse
    ) -> None:
        """Append what came with the demand to cut the log: it begins where that does."""
        partition.end_cut(cut)
        if cut.recovered is not None:
            self._environment.counts.truncated_records += cut.truncated_count
        if not self._is_followed(partition) or not fetched.records or fetched.error_code:
            return
        try:
            if partition.take(fetched, self._environment.clock.now_ms()):
                self._environment.make_durable([partition])
        except ApiError as problem:
            self._delay(partition, str(problem))

    def _is_followed(self, partition: FollowerPartition) -> bool:
        """True unless the partition was dropped, perhaps for another epoch of it."""
        return self._partitions.get(_key(partition)) is partition

    def _delay(self, partition: FollowerPartition, reason: str) -> None:
        partition.is_refused = True
        log.debug("replica fetch refused", extra={"tp": partition.tp, "reason": reason})
        partition.retry_s = self._environment.clock.monotonic_s() + _PARTITION_RETRY_S


def _is_current(partition: FollowerPartition, sent: FetchPartition | None) -> bool:
    """True if the response is to what the partition would request now."""
    return (
        sent is not None
        and not partition.is_being_cut
        and sent.current_leader_epoch == partition.leader_epoch
        and sent.fetch_offset == partition.log.end_offset
        and sent.last_fetched_epoch == partition.log.epochs.latest
    )


def _key(partition: FollowerPartition) -> PartitionKey:
    return partition.topic_id, partition.tp.partition


def _by_topic(wanted: dict[PartitionKey, FetchPartition]) -> list[FetchTopic]:
    topics: dict[Uuid, FetchTopic] = {}
    for (topic_id, _), partition in wanted.items():
        topic = topics.setdefault(topic_id, FetchTopic(topic_id=topic_id))
        topic.partitions.append(partition)
    return list(topics.values())
