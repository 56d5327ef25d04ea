"""A consumer of a share group: each record is acquired for a while, and acknowledged by itself."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from random import Random, SystemRandom
from typing import Final, Self

from ottla.client.client import Client
from ottla.client.errors import ClientError, ConnectionLost, Refused
from ottla.client.share_membership import ShareMembership
from ottla.client.share_records import (
    GROUP_BACKOFF,
    AcknowledgeKind,
    Acknowledgement,
    Session,
    ShareRecord,
)
from ottla.client.share_session import ShareSession
from ottla.errors import ErrorCode
from ottla.model import BrokerId, TopicPartition, Uuid

__all__ = ["AcknowledgeKind", "ShareConsumer", "ShareRecord"]

_PAUSE_S: Final = 0.1  # before a broker or partition that refused is tried again
_CLOSE_S: Final = 5.0
_SESSION_OVER: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ShareConsumer:
    """A member of a share group, owned by its creator, on its client's event loop.

    Follows partitions to new leaders and joins again by itself. What was acquired from a broker
    that is lost is delivered again, perhaps to another member, unless the group's leases are
    durable: then the next session acknowledges it. One `poll` runs at a time; the other methods
    may be called at any time.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        topics: Iterable[str],
        *,
        rng: Random | None = None,
        is_durable: bool = False,
    ) -> None:
        """`rng` makes the member's id; the system's randomness if there is none.

        `is_durable` if the group has `share.lease.durable=true`.
        """
        self._client = client
        self._group_id = group_id
        self._topics = tuple(dict.fromkeys(topics))
        self._membership = ShareMembership(
            client, group_id, self._topics, rng or SystemRandom(), self._note_assigned
        )
        self._sessions: dict[BrokerId, ShareSession] = {}
        self._by_leader: dict[BrokerId, dict[TopicPartition, Uuid]] = {}
        self._is_located = False  # `by_leader` is that of the assignment and the newest metadata
        self._assigned_anew = asyncio.Event()
        self._turn = 0  # the broker that is tried first
        self._fetches: dict[BrokerId, asyncio.Task[list[ShareRecord]]] = {}
        self._acquired: list[ShareRecord] = []  # and not returned yet
        self._failing_since_s: float | None = None
        self._said: dict[ShareRecord, Acknowledgement] = {}
        self._committing = asyncio.Lock()
        self._is_durable = is_durable
        self._opening = asyncio.Lock()

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    @property
    def assigned(self) -> dict[TopicPartition, Uuid]:
        """The partitions that this member fetches now."""
        return {tp: id_ for located in self._by_leader.values() for tp, id_ in located.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # Records

    async def poll(self, max_records: int = 500, wait_ms: int = 500) -> list[ShareRecord]:
        """Acquire up to `max_records`, of one broker; none if there are none within `wait_ms`.

        Brokers are asked in turn; if none has any, all are asked to wait for some. Raises what
        stays wrong for the client's timeout, and what will not change by itself; the next call
        tries again. What a cancelled call has acquired is returned by the next one.
        """
        await self._membership.join()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_ms / 1000
        while True:
            self._assigned_anew.clear()
            await self._locate()
            brokers = self._brokers_in_turn()
            for broker in brokers:
                await asyncio.wait([self._begin_fetch(broker, max_records, 0)])
                self._collect()
                if self._acquired:
                    return self._take(max_records)
            left_ms = int((end_s - loop.time()) * 1000)
            if left_ms <= 0:
                return []
            if not self._is_located or not brokers:
                await self._wait_assigned(min(_PAUSE_S, left_ms / 1000))
            elif found := await self._fetch_any(brokers, max_records, left_ms):
                return found
            await self._membership.join()

    def _brokers_in_turn(self) -> list[BrokerId]:
        brokers = list(self._by_leader)
        self._turn += 1
        first = self._turn % len(brokers) if brokers else 0
        return brokers[first:] + brokers[:first]

    async def _fetch_any(
        self, brokers: Sequence[BrokerId], max_records: int, wait_ms: int
    ) -> list[ShareRecord]:
        """Have all brokers wait for records. What is too much is given back, uncounted."""
        fetches = [self._begin_fetch(broker, max_records, wait_ms) for broker in brokers]
        waking = asyncio.create_task(self._assigned_anew.wait())
        try:
            await asyncio.wait([*fetches, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            # A call that is cancelled here leaves no fetch that waits, either.
            ending = [asyncio.create_task(self._end_wait(broker)) for broker in self._fetches]
        await asyncio.wait([*fetches, *ending])
        self._collect()
        found = self._take(max_records)
        for record in self._acquired:
            self.acknowledge(record, AcknowledgeKind.RELEASE, delay_ms=0, count=False)
        if self._acquired:
            self._acquired = []
            await self.commit()
        return found

    def _begin_fetch(
        self, broker: BrokerId, max_records: int, wait_ms: int
    ) -> "asyncio.Task[list[ShareRecord]]":
        """The fetch that is under way at a broker, or a new one."""
        fetch = self._fetches.get(broker)
        if fetch is None:
            fetch = asyncio.create_task(self._fetch(broker, max_records, wait_ms))
            self._fetches[broker] = fetch
        return fetch

    def _collect(self) -> None:
        """Take the results of fetches that are done; raises what will not change by itself."""
        problem: BaseException | None = None
        for broker, fetch in list(self._fetches.items()):
            if fetch.done():
                del self._fetches[broker]
                failure = fetch.exception()
                if failure is None:
                    self._acquired += fetch.result()
                problem = failure or problem
        if problem is not None:
            raise problem

    def _take(self, max_records: int) -> list[ShareRecord]:
        """Records that are still held, up to a number of them."""
        now_s = asyncio.get_running_loop().time()
        held = [
            record
            for record in self._acquired
            if record.lock_end_s > now_s and (record.session.is_open or self._is_durable)
        ]
        self._acquired = held[max_records:]
        return held[:max_records]

    async def _fetch(self, broker: BrokerId, max_records: int, wait_ms: int) -> list[ShareRecord]:
        """Records of one broker; none after an error that may pass, and metadata is read again."""
        try:
            session = await self._session(broker)
            fetched = await session.fetch(self._by_leader.get(broker, {}), max_records, wait_ms)
        except ClientError as problem:
            self._note_problem(problem)
            return []
        for refused in fetched.problems.values():
            self._note_problem(refused)
        if not fetched.problems:
            self._failing_since_s = None
        return fetched.records

    async def _end_wait(self, broker: BrokerId) -> None:
        """Have a broker respond to a fetch that waits there."""
        session = self._sessions.get(broker)
        if session is not None and session.is_open:
            with suppress(ClientError):
                await session.fetch(self._by_leader.get(broker, {}), 0, 0)

    def _note_problem(self, problem: ClientError) -> None:
        """Have leaders looked up again; raises the problem if it does not pass."""
        now_s = asyncio.get_running_loop().time()
        self._is_located = False
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        is_passing = not isinstance(problem, Refused) or (
            problem.is_retriable or problem.code in _SESSION_OVER
        )
        if not is_passing or now_s > self._failing_since_s + self._client.timeout_s:
            self._failing_since_s = None
            raise problem

    # Acknowledgements

    def acknowledge(
        self,
        record: ShareRecord,
        kind: AcknowledgeKind = AcknowledgeKind.ACCEPT,
        *,
        delay_ms: int | None = None,
        count: bool = True,
        reason: str = "",
    ) -> None:
        """Note what became of a record, for the next `commit`.

        A released record is delivered again after `delay_ms`, None for the group's backoff, and
        with `count` false as if this delivery had not been. A `reason` for rejecting it is in its
        dead letter.
        """
        delay_ms = GROUP_BACKOFF if delay_ms is None else delay_ms
        self._said[record] = Acknowledgement(record, kind, delay_ms, count, reason)

    async def commit(self) -> list[ShareRecord]:
        """Send the acknowledgements; returns when all noted before are durable, or have failed.

        The result are the records that failed of those that this call sent: `failure` says why.
        They are delivered again, unless the response alone was lost.
        """
        async with self._committing:
            said, self._said = list(self._said.values()), {}
            await self._send(said)
        return [item.record for item in said if item.record.failure is not None]

    async def renew(self, records: Iterable[ShareRecord]) -> list[ShareRecord]:
        """Keep records for another lock duration; returns those that are not held any more."""
        said = [Acknowledgement(record, AcknowledgeKind.RENEW) for record in records]
        await self._send(said)
        return [item.record for item in said if item.record.failure is not None]

    async def _send(self, said: Collection[Acknowledgement]) -> None:
        by_session: dict[Session, list[Acknowledgement]] = {}
        if self._is_durable:
            await self._move([item.record for item in said])
        for item in said:
            session = item.record.session
            item.record.failure = None
            if session.is_open:
                by_session.setdefault(session, []).append(item)
            else:
                item.record.failure = ConnectionLost(
                    f"{item.record.tp}: the session that acquired offset {item.record.offset} is"
                    " over; the record is delivered again"
                )
        await asyncio.gather(*(session.acknowledge(items) for session, items in by_session.items()))

    async def _move(self, records: Iterable[ShareRecord]) -> None:
        """Have records acknowledged where their partitions are led now: the session that acquired
        them is over, or could not acknowledge them."""
        lost = [one for one in records if one.failure is not None or not one.session.is_open]
        if not lost:
            return
        try:
            view = await self._client.describe(list({one.tp.topic: None for one in lost}))
            for record in lost:
                leader = view.leader_of(record.tp)
                if leader is not None:
                    record.session = await self._opened(leader)
        except ClientError:
            self._is_located = False  # sessions that are over say so themselves

    async def _opened(self, broker: BrokerId) -> ShareSession:
        """A session that the broker knows."""
        session = await self._session(broker)
        if session.is_new:
            await session.fetch(self._by_leader.get(broker, {}), 0, 0)
        return session

    async def close(self) -> None:
        """Send what is acknowledged, give back the rest uncounted, leave the group."""
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.commit()
        for session in self._sessions.values():
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await session.close()
            session.abandon()
        self._sessions.clear()
        if self._fetches:
            await asyncio.wait(self._fetches.values())
        await self._membership.leave()

    def abandon(self) -> None:
        """End without a word, as a process that dies: the group finds out by itself."""
        for session in self._sessions.values():
            session.abandon()
        self._membership.abandon()

    # Leaders

    async def _wait_assigned(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._assigned_anew.wait()

    def _note_assigned(self) -> None:
        self._is_located = False
        self._assigned_anew.set()

    async def _locate(self) -> None:
        """Find the leaders of the assigned partitions, if they may have changed."""
        if self._is_located:
            return
        self._is_located = True
        view = await self._client.retry(lambda: self._client.describe(self._topics))
        assigned = self._membership.assigned
        by_leader: dict[BrokerId, dict[TopicPartition, Uuid]] = {}
        for topic in view.topics.values():
            for index in assigned.get(topic.id, ()):
                leader = topic.partitions[index].leader if index < len(topic.partitions) else None
                if leader is None:
                    self._is_located = False
                else:
                    by_leader.setdefault(leader, {})[TopicPartition(topic.name, index)] = topic.id
        self._by_leader = by_leader

    async def _session(self, broker: BrokerId) -> ShareSession:
        async with self._opening:  # one at a time: a second one would end the first
            session = self._sessions.get(broker)
            if session is None or not session.is_open:
                connection = await self._client.open_connection(broker)
                session = ShareSession(connection, self._group_id, self._membership.member_id)
                self._sessions[broker] = session
            return session
