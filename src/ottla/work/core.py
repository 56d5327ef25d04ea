"""The core of both queues: on one event loop, whatever becomes of connections and brokers."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random, SystemRandom
from typing import Final

from ottla.client.client import Client
from ottla.client.configs import Resource, ResourceKind, Source, alter_settings, settings_of
from ottla.client.errors import (
    TRANSPORT_ERRORS,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    Refused,
)
from ottla.client.share_consumer import ShareConsumer, ShareRecord
from ottla.clock import Clock, SystemClock
from ottla.errors import ErrorCode
from ottla.model import Endpoint
from ottla.work.errors import LeaseLost, QueueClosed
from ottla.work.leases import Lease, Leases, LeaseState
from ottla.work.puts import Puts
from ottla.work.settlement import Settlement, given_back

log = logging.getLogger("ottla.queue")

LEASE_MAX_S: Final = 12 * 3600.0
_SLICE_S: Final = 1.0  # of a wait for messages, after which others have their turn
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0
_GIVE_BACK_S: Final = 5.0  # a message that cannot be given back meanwhile is when its lock ends
_MARGIN_S: Final = 2.0  # by which a lock may end earlier than this side thinks
# Errors of a session: the next one acknowledges.
_SESSION_OVER: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
# What a queue wants of its group, unless the group has a setting of its own.
GROUP_SETTINGS: Final[Mapping[str, str]] = {
    "share.auto.offset.reset": "earliest",
    "share.lease.durable": "true",
}
_DURABLE: Final = "share.lease.durable"


class QueueCore:
    """A producer and a member of a share group, made on first use; owned by one queue."""

    def __init__(
        self,
        topic: str,
        *,
        servers: str,
        group: str,
        timeout_s: float,
        lease_max_s: float,
        group_settings: Mapping[str, str] = GROUP_SETTINGS,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        bootstrap = [Endpoint.parse(part.strip()) for part in servers.split(",")]
        rng = rng or SystemRandom()
        self.topic = topic
        self.group = group
        self._group_settings = group_settings
        self._client = Client(bootstrap, timeout_s=timeout_s)
        self.puts = Puts(self._client, topic, clock or SystemClock(), rng)
        self._rng = rng
        self._consumer: ShareConsumer | None = None
        self._is_durable = True
        self._joining = asyncio.Lock()
        self._polling = asyncio.Lock()
        self._leases = Leases(lease_max_s)
        self._keeping: asyncio.Task[None] | None = None
        self._giving_back: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def check_open(self) -> None:
        if self._is_closed:
            raise QueueClosed(f"the queue of {self.topic} was closed")

    async def close(self) -> None:
        """Finish what is being sent, give back what is held, and leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self.puts.close()
        if self._giving_back:
            await asyncio.wait(self._giving_back)
        if self._consumer is not None:
            await self._consumer.close()
        await self._client.close()

    # Receiving

    async def get(self, records_max: int, wait_s: float | None) -> list[Lease]:
        """Leases of messages; none if there were none within `wait_s`, None to wait for ever.

        Errors that pass are waited out. A lease is wanted until `is_wanted` is replaced.
        """
        if records_max < 1:
            raise ValueError(f"at least one message, not {records_max}")
        loop = asyncio.get_running_loop()
        end_s = None if wait_s is None else loop.time() + wait_s
        pause_s = _PAUSE_MIN_S
        while True:
            self.check_open()
            left_s = _SLICE_S if end_s is None else max(min(_SLICE_S, end_s - loop.time()), 0.0)
            records: Sequence[ShareRecord] = ()
            try:
                consumer = await self._join()
                async with self._polling:
                    records = await consumer.poll(records_max, int(left_s * 1000))
                pause_s = _PAUSE_MIN_S
            except ClientError as problem:
                if not _is_passing(problem):
                    raise
                log.warning("queue waits", extra={"topic": self.topic, "reason": problem})
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            if records:
                return [self._begin(record) for record in records]
            if end_s is not None and loop.time() >= end_s:
                return []

    async def _join(self) -> ShareConsumer:
        async with self._joining:
            if self._consumer is None:
                await self._client.retry(lambda: self._client.describe([self.topic]))
                await self._client.retry(self._prepare_group, on=TRANSPORT_ERRORS)
                self._consumer = ShareConsumer(
                    self._client,
                    self.group,
                    [self.topic],
                    rng=self._rng,
                    is_durable=self._is_durable,
                )
                self._keeping = asyncio.create_task(self._keep_leases())
            return self._consumer

    async def _prepare_group(self) -> None:
        """Set what a queue needs of its group; what someone has set stays."""
        resource = Resource(ResourceKind.GROUP, self.group)
        found = {s.name: s for s in (await settings_of(self._client, [resource]))[resource]}
        wanted = {
            name: value
            for name, value in self._group_settings.items()
            if name not in found or found[name].source is not Source.GROUP
        }
        if wanted:
            await alter_settings(self._client, resource, assign=wanted, remove=())
        self._is_durable = _DURABLE in wanted or found[_DURABLE].value == "true"

    def _begin(self, record: ShareRecord) -> Lease:
        now_s = asyncio.get_running_loop().time()
        lease = Lease(record, now_s, record.lock_end_s - now_s, lambda: True)
        self._leases.add(lease)
        return lease

    # Settling

    async def settle(self, lease: Lease, settlement: Settlement) -> None:
        """Acknowledge a message, give it back or reject it; returns when that is durable.

        While no broker can be reached it is tried again; `LeaseLost` if it came too late.
        """
        self.check_open()
        lease.begin_settling()
        try:
            await self._settle(lease, settlement)
        except BaseException:
            if lease.state is LeaseState.SETTLING:
                lease.state = LeaseState.HELD  # the caller was cancelled, and may try again
            raise

    async def _settle(self, lease: Lease, settlement: Settlement) -> None:
        assert self._consumer is not None, "it was received"
        record, pause_s = lease.record, _PAUSE_MIN_S
        kind, delay_ms, counts, reason = settlement
        while True:
            self._consumer.acknowledge(record, kind, delay_ms=delay_ms, count=counts, reason=reason)
            await self._consumer.commit()
            failure = record.failure
            if failure is None or (lease.is_unsure and self._is_done_before(record, failure)):
                self._end(lease, LeaseState.SETTLED)
                return
            if not self._is_passing_for(failure):
                self._end(lease, LeaseState.LOST)
                raise LeaseLost(f"{lease.name}: {failure}")
            lease.is_unsure |= isinstance(failure, ConnectionLost | DeadlineExceeded)
            self.check_open()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _is_done_before(self, record: ShareRecord, failure: ClientError) -> bool:
        """True if an earlier attempt has settled it: its lock has not ended, and it is not held."""
        return (
            isinstance(failure, Refused)
            and failure.code is ErrorCode.INVALID_RECORD_STATE
            and asyncio.get_running_loop().time() < record.lock_end_s - _MARGIN_S
        )

    def _is_passing_for(self, failure: ClientError) -> bool:
        """True if the message may be held still, and settled by another attempt."""
        return _is_passing(failure) and (self._is_durable or isinstance(failure, Refused))

    def _end(self, lease: Lease, state: LeaseState) -> None:
        lease.state = state
        self._leases.remove(lease)

    async def give_back(self, lease: Lease, *, counts: bool = True) -> None:
        """Give back a message that no handler will settle; not for long: its lock ends anyway."""
        with suppress(LeaseLost, ClientError, TimeoutError, QueueClosed):
            async with asyncio.timeout(_GIVE_BACK_S):
                await self.settle(lease, given_back(counts=counts))
                return
        self._end(lease, LeaseState.LOST)

    async def extend(self, lease: Lease) -> None:
        """Hold a message for another lock duration, and count `lease_max` from now on."""
        self.check_open()
        if lease.state is not LeaseState.HELD:
            lease.begin_settling()  # raises why it cannot
        lease.begun_s = asyncio.get_running_loop().time()
        self._leases.add(lease)
        await self._renew([lease])
        if lease.state is LeaseState.LOST:
            raise LeaseLost(f"{lease.name}: {lease.record.failure}")

    # Keeping

    async def _keep_leases(self) -> None:
        """Renew leases; give back messages that no handler can settle any more."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._leases.pause_s(loop.time()))
            for lease in self._leases.unwanted():
                log.warning("message given back: its handler is gone", extra={"lease": lease.name})
                self._leases.remove(lease)
                task = asyncio.create_task(self.give_back(lease))
                self._giving_back[task] = None
                task.add_done_callback(lambda done: self._giving_back.pop(done, None))
            for lease in self._leases.take_overdue(loop.time()):
                log.warning("lease not renewed any more", extra={"lease": lease.name})
            due = self._leases.due(loop.time())
            if due:
                await self._renew(due)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        assert self._consumer is not None, "they were received"
        records = [lease.record for lease in leases]
        try:
            async with asyncio.timeout(min(lease.lock_s for lease in leases) / 3):
                await self._consumer.renew(records)
        except TimeoutError:
            return
        for lease in leases:
            failure = lease.record.failure
            is_held = lease.state is LeaseState.HELD
            if failure is None or not is_held or self._is_passing_for(failure):
                continue
            self._end(lease, LeaseState.LOST)
            log.warning("lease lost", extra={"lease": lease.name, "reason": failure})


def _is_passing(problem: ClientError) -> bool:
    if isinstance(problem, Refused):
        return problem.is_retriable or problem.code in _SESSION_OVER
    return isinstance(problem, TRANSPORT_ERRORS)
