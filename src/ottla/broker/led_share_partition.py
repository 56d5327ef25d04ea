"""A share partition whose partition this broker leads: reading the log, writing its state."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.share_reading import (
    ReadBatches,
    Reading,
    digests_of,
    expired_in,
    seen_of,
    stretches_of,
)
from ottla.broker.share_settings import GroupSettings
from ottla.coordinator.runtime.decision import Ticket
from ottla.errors import ApiError, CoordinatorNotAvailable, ErrorCode, NotLeader
from ottla.model import Offset
from ottla.queues.acknowledgements import Acknowledgement
from ottla.queues.errors import InvalidRecordState
from ottla.queues.expiry import Expiries
from ottla.queues.lost_offsets import LostOffsets
from ottla.queues.share_limits import ShareLimits, portion_max
from ottla.queues.share_partition import Acquired, SharePartition, Stretch
from ottla.queues.share_ranges import Range
from ottla.queues.share_sessions import SessionKey, SharedPartition
from ottla.queues.share_state import SharePartitionKey, StateWrite
from ottla.records.batch import decompressed_bytes_max
from ottla.replication.partition import LeaderPartition

if TYPE_CHECKING:
    from ottla.broker.share_partitions import SharePartitions

log = logging.getLogger("ottla.broker")

_CHUNK_BYTES: Final = 256 * 1024  # of a log that are looked at for one response
_CHUNK_BYTES_MIN: Final = 4 * 1024
_AHEAD_BYTES_MAX: Final = 16 * 1024  # of a read of which the rest is kept for the next fetch
_RECORD_BYTES: Final = 1024  # of a record, before one was delivered
_READS_MAX: Final = 4  # of a log that has nothing to deliver, in one turn of the loop
_BY_KEY: Final = "key"
_READ_COMMITTED: Final = "read_committed"
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_REPLACED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})

Done = Callable[[ApiError | None], None]


class Taken(NamedTuple):
    """Records for a member, and which of them it has acquired."""

    records: bytes
    acquired: list[Acquired]
    is_alone: bool  # no other records may be in the same response
    is_leased: bool  # the state must be written before they are sent


class Wanted(NamedTuple):
    """The limits of a fetch."""

    records_max: int
    bytes_max: int
    is_strict: bool
    has_others: bool  # records of other partitions are in the same response


class LedSharePartition:
    """A share partition whose partition is led here; `state` is None while it is loaded."""

    def __init__(
        self, owner: "SharePartitions", key: SharePartitionKey, partition: LeaderPartition
    ) -> None:
        self.key = key
        self.partition = partition
        self.state: SharePartition | None = None
        self.state_epoch = 0
        self.problem: ApiError | None = None  # the reason why it was dropped
        self.waiting: dict[Callable[[], None], None] = {}  # called when more can be acquired
        self._owner = owner
        self._expiries = Expiries()
        self._ahead: ReadBatches | None = None  # read by the last fetch, and not all acquired
        self._record_bytes = _RECORD_BYTES  # about, of the records that were acquired last

    @property
    def settings(self) -> GroupSettings:
        return self._owner.settings_of(self.key.group_id)

    @property
    def lag(self) -> int:
        """Records that are not finished, acquired ones included."""
        if self.state is None:
            return 0
        end = self.partition.high_watermark
        return self.state.unfinished_count + max(end - self.state.end_offset, 0)

    @property
    def ordered_count(self) -> int:
        """Records whose keys are remembered."""
        order = None if self.state is None else self.state.order
        return 0 if order is None else len(order)

    @property
    def is_held(self) -> bool:
        """True if a member has records that it has not acknowledged, or dead letters are due."""
        return self.state is not None and self.state.acquired_count + self.state.dead.count > 0

    def acquire(self, member: str, wanted: Wanted) -> Taken | None:
        """Records for a member; None if there are none to acquire now.

        If they are leased, the caller has the state written: it calls `persist`.
        """
        state = self.state
        if state is None:
            return None
        settings, partition = self.settings, self.partition
        config, log_start = settings.config, partition.log.start_offset
        if log_start > state.start_offset:
            self._persist(state.note_log_start(log_start))
        read_committed = config.share_isolation_level == _READ_COMMITTED
        end = partition.readable_end(read_committed=read_committed)
        if state.dead.count >= self._owner.dead_max:
            return None
        state.order_by_key(config.share_ordering == _BY_KEY)
        if state.order is not None:
            return self._acquire_ordered(state, member, wanted, self._reading(read_committed), end)
        now_ms, bytes_max = self._owner.now_ms(), self._first_chunk_bytes(wanted)
        for _ in range(_READS_MAX):
            at = Offset(state.next_offset(now_ms))
            if at >= end or (
                at >= state.end_offset and not state.has_room(settings.limits, now_ms)
            ):
                return None
            found = self._read(at, end, bytes_max)
            if found is None:
                return None
            acquired = state.acquire(
                member,
                self._stretches(found, at, read_committed),
                settings.limits,
                wanted.records_max,
                now_ms,
                is_strict=wanted.is_strict,
                has_others=wanted.has_others,
            )
            if acquired:
                return self._taken(member, found, acquired, settings.limits, now_ms)
            self._persist(state.take_write())
            if state.next_offset(now_ms) <= at:
                return None
            bytes_max = min(wanted.bytes_max, _CHUNK_BYTES)
        self._owner.wake_soon(self)  # there may be something behind
        return None

    def _stretches(self, found: ReadBatches, at: Offset, read_committed: bool) -> Iterable[Stretch]:
        """The offsets of what was read, from `at` on, as the group reads them."""
        if found.is_plain:
            return found.stretches(at)
        log, reading = self.partition.log, self._reading(read_committed)
        return stretches_of(found.rest(at), at, found.end, log, reading)

    def _reading(self, read_committed: bool) -> Reading:
        """How the group reads now."""
        stable_end = self.partition.readable_end(read_committed=True)
        wall_ms = self._owner.wall_ms()
        return Reading(self.key.group_id, read_committed, stable_end, wall_ms, self._expiries)

    def _read(self, at: Offset, end: Offset, bytes_max: int) -> ReadBatches | None:
        """Batches from an offset on: those that the last fetch left, or others."""
        ahead = self._ahead
        if ahead is not None and ahead.end <= end and ahead.has(at):
            return ahead
        return self._read_log(at, end, bytes_max)

    def _read_log(self, at: Offset, end: Offset, bytes_max: int) -> ReadBatches | None:
        """Whole batches from the one that holds `at` on, up to `end`; None if there are none."""
        log = self.partition.log
        found = log.read(at, end, bytes_max, at_least_one=True)
        if found is None:
            return None
        data = log.read_bytes(found)
        return ReadBatches(data, min(found.end_offset, end)) if data else None

    def _first_chunk_bytes(self, wanted: Wanted) -> int:
        """How many bytes are read at first: twice what the wanted records may take.

        And not too few, for fetches of one record follow each other.
        """
        about = max(2 * wanted.records_max * self._record_bytes, _CHUNK_BYTES_MIN)
        return min(about, wanted.bytes_max, _CHUNK_BYTES)

    def _acquire_ordered(
        self, state: SharePartition, member: str, wanted: Wanted, reading: Reading, end: Offset
    ) -> Taken | None:
        """Records that are the first unfinished ones of their keys."""
        limits, now_ms, log = self.settings.limits, self._owner.now_ms(), self.partition.log
        for _ in range(_READS_MAX):
            at = state.next_ready(now_ms)
            if at is not None:
                break
            if state.scan_offset >= end or not state.can_scan(limits):
                return None
            before = state.scan_offset
            self._scan(state, reading, end)
            self._persist(state.take_write())
            if state.scan_offset == before:
                return None
        else:
            self._owner.wake_soon(self)  # there may be something behind
            return None
        bytes_max = min(wanted.bytes_max, _CHUNK_BYTES)
        found = self._read_log(Offset(at), end, bytes_max)
        if found is None:
            return None
        for stretch in expired_in(found.data, log, reading):
            state.drop_available(stretch, limits)
        acquired = state.acquire_ready(
            member,
            found.end,
            limits,
            wanted.records_max,
            now_ms,
            has_others=wanted.has_others,
        )
        if not acquired:
            write = state.take_write()
            self._persist(write)
            if write is not None:
                self._owner.wake_soon(self)  # what was ready has expired
            return None
        return self._taken(member, found, acquired, limits, now_ms)

    def _scan(self, state: SharePartition, reading: Reading, end: Offset) -> None:
        """Read keys of a part of the log."""
        at, log = state.scan_offset, self.partition.log
        found = log.read(Offset(at), end, _CHUNK_BYTES, at_least_one=True)
        if found is not None:
            data = log.read_bytes(found)
            found_end = min(found.end_offset, end)
            stretches = list(stretches_of(data, at, found_end, log, reading))
            bytes_max = decompressed_bytes_max(log.config.max_message_bytes)
            state.scan(stretches, digests_of(data, bytes_max), self.settings.limits)

    def _taken(
        self,
        member: str,
        found: ReadBatches,
        acquired: list[Acquired],
        limits: ShareLimits,
        now_ms: int,
    ) -> Taken:
        """The response's part."""
        assert self.state is not None, "records were acquired"
        owner = self._owner
        lost = self._lost(member)
        if lost is not None:
            for one in acquired:
                lost.discard(one.first, one.last + 1)
        is_leased = limits.is_lease_durable
        if not is_leased:
            self._persist(self.state.take_write())
        count, last = 0, Offset(0)
        for first, last, _ in acquired:
            count += last - first + 1
        owner.acquired_count += count
        owner.note_deadline(now_ms + limits.lock_ms)
        records = found.covering(acquired[0].first, last)
        is_kept = last + 1 < found.end and len(found.data) <= _AHEAD_BYTES_MAX
        self._ahead = found if is_kept else None
        self._record_bytes = len(records) // count + 1
        if not found.is_plain:
            records = seen_of(records, self.partition.log)
        return Taken(records, acquired, _is_alone(acquired, limits), is_leased)

    def acknowledge(
        self,
        member: str,
        acknowledgements: Sequence[Acknowledgement],
        done: Done,
        *,
        may_renew: bool,
    ) -> None:
        """Acknowledge now; `done` is called when that is durable, or with why it will not be.

        Raises an ApiError, and nothing has changed.
        """
        limits, now_ms = self.settings.limits, self._owner.now_ms()
        if self.state is None:
            if self.problem is not None or not limits.is_lease_durable:
                raise InvalidRecordState("no record is acquired: the share partition is loaded")
            self._when_loaded(
                lambda: self.acknowledge(member, acknowledgements, done, may_renew=may_renew), done
            )
            return
        self._check_not_lost(member, acknowledgements, self.state.start_offset)
        write = self.state.acknowledge(
            member, acknowledgements, limits, now_ms, may_renew=may_renew
        )
        self._persist(write, done)
        self.wake()

    def _check_not_lost(
        self, member: str, acknowledgements: Sequence[Acknowledgement], start_offset: int
    ) -> None:
        """Raise InvalidRecordState if records that are finished were another member's then.

        From the start offset on the state itself says who holds what.
        """
        lost = self._lost(member)
        if lost is None:
            return
        for one in acknowledgements:
            found = lost.first_in(one.first, min(one.last + 1, start_offset))
            if found is not None:
                raise InvalidRecordState(f"offset {found} is not acquired by this member any more")

    def _session_of(self, member: str) -> tuple[SessionKey, SharedPartition]:
        key = self.key
        return SessionKey(key.group_id, member), SharedPartition(key.topic_id, key.partition)

    def _lost(self, member: str) -> LostOffsets | None:
        """Offsets that a member has lost; None, as most often, if there are none."""
        sessions = self._owner.sessions
        return sessions.lost(*self._session_of(member)) if sessions.has_lost else None

    def _note_lost(self, held: Iterable[Range]) -> None:
        for item in held:
            session = self._session_of(item.member)
            self._owner.sessions.note_lost(*session, item.start, item.end)

    def _when_loaded(self, call: Callable[[], None], done: Done) -> None:
        """Call when the state is loaded; errors go to `done`."""

        def wake() -> None:
            if self.state is None and self.problem is None:
                return
            del self.waiting[wake]
            try:
                if self.problem is not None:
                    raise self.problem
                call()
            except ApiError as refused:
                done(refused)

        self.waiting[wake] = None

    def release(self, member: str, *, counts: bool) -> None:
        """Give back what a member holds. A durable lease ends with its lock if that `counts`."""
        limits, now_ms = self.settings.limits, self._owner.now_ms()
        if self.state is not None and not (counts and limits.is_lease_durable):
            self._persist(self.state.release_member(member, limits, now_ms, counts=counts))
            self.wake()

    def expire(self, now_ms: int) -> None:
        """End the locks whose time is over, and wake fetches if a record need not wait any more."""
        if self.state is None:
            return
        self._note_lost(item for item in self.state.held() if item.until_ms <= now_ms)
        write = self.state.expire(self.settings.limits, now_ms)
        if write is not None:
            log.debug("acquisition locks ended", extra={"share_partition": self.key})
            self._persist(write)
        state = self.state
        if self.waiting and state is not None and state.next_offset(now_ms) < state.end_offset:
            self.wake()

    def persist(self, done: Done) -> None:
        """Have changes of the state written; `done` is called when they are durable."""
        assert self.state is not None, "a state that is loaded is changed"
        self._persist(self.state.take_write(), done)

    def wake(self) -> None:
        for wake in list(self.waiting):
            wake()

    def drop(self, problem: ApiError) -> None:
        """Give up: those who wait get the error, and the next fetch loads the state again."""
        if self.state is not None and not self.settings.limits.is_lease_durable:
            self._note_lost(self.state.held())
        self.state, self.problem, self._ahead = None, problem, None
        self.wake()

    def _persist(self, write: StateWrite | None, done: Done | None = None) -> None:
        if write is None:
            if done is not None:
                done(None)
            return

        if write.batches:
            waits = [batch.not_before_ms for batch in write.batches if batch.not_before_ms]
            self._owner.note_deadline(min(waits, default=None))
        self._owner.write(self, write, _WriteTicket(self, done))

    def note_written(self, problem: ApiError | None) -> ApiError | None:
        """A change of the state is durable, or may not be; returns what a member gets to know."""
        if problem is None:
            self._owner.dead_letters.begin(self)
            return None
        problem = client_error(problem)
        self._owner.drop(self, problem)
        return problem


class _WriteTicket(Ticket[ApiError | None]):
    """Where the result of a write goes: to the share partition, and to who waits for it."""

    __slots__ = ("_done", "_led")

    def __init__(self, led: LedSharePartition, done: Done | None) -> None:
        self._led = led
        self._done = done

    def deliver(self, value: ApiError | None) -> None:
        problem = self._led.note_written(value)
        if self._done is not None:
            self._done(problem)

    def fail(self, error: ApiError) -> None:
        self.deliver(error)


def client_error(problem: ApiError) -> ApiError:
    """The error that a member gets when the state of a share partition cannot be used."""
    if problem.code in _RETRIABLE:
        return CoordinatorNotAvailable(str(problem))
    if problem.code in _REPLACED:
        return NotLeader(str(problem))
    return problem


def _is_alone(acquired: Sequence[Acquired], limits: ShareLimits) -> bool:
    for _, _, deliveries in acquired:
        if deliveries > 1 and portion_max(deliveries - 1, 1, limits.deliveries_max) is not None:
            return True
    return False
