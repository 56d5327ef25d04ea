"""Share partitions of the partitions that this broker leads: reading, writing, waiting.

The state of a share partition is loaded with its first fetch and dropped with its last session, or
when a change of it could not be written: then it is not known what was, and it is loaded again.
What members had acquired is available again after that, as after a crash.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.broker.share_metrics import ShareCounts
from ottla.broker.share_reading import covering, duration_ms, stretches_of
from ottla.broker.share_settings import GroupSettings, ShareGroupSettings
from ottla.clock import Clock
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.share.coordinator import ShareCoordinator
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    NotLeader,
)
from ottla.model import Offset, TimestampMs
from ottla.queues.errors import InvalidRecordState
from ottla.queues.share_partition import (
    Acknowledgement,
    Acquired,
    ShareLimits,
    SharePartition,
    portion_max,
)
from ottla.queues.share_sessions import SessionKey, SharedPartition, ShareSession, ShareSessions
from ottla.queues.share_state import NO_START, SharePartitionKey, StateRead, StateWrite
from ottla.replication.partition import LeaderPartition
from ottla.replication.replicas import Replicas
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")

_CHUNK_BYTES: Final = 256 * 1024  # of a log that are looked at for one response
_READS_MAX: Final = 4  # of a log that has nothing to deliver, in one turn of the loop
_LOAD_TRIES: Final = 100  # while the shard of the state reads its log
_LOAD_PAUSE_S: Final = 0.1
_READ_COMMITTED: Final = "read_committed"
_EARLIEST: Final = "earliest"
_BY_DURATION: Final = "by_duration:"
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


class Wanted(NamedTuple):
    """The limits of a fetch."""

    records_max: int
    bytes_max: int
    is_strict: bool


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
    def is_held(self) -> bool:
        """True if a member has records that it has not acknowledged."""
        return self.state is not None and self.state.next_lock_ms() is not None

    def acquire(self, member: str, wanted: Wanted) -> Taken | None:
        """Records for a member; None if there are none to acquire now."""
        state, settings = self.state, self.settings
        if state is None:
            return None
        partition, limits = self.partition, settings.limits
        self._persist(state.note_log_start(partition.log.start_offset))
        read_committed = settings.config.share_isolation_level == _READ_COMMITTED
        end = partition.readable_end(read_committed=read_committed)
        for _ in range(_READS_MAX):
            at = state.next_offset()
            if at >= end or (at >= state.end_offset and not state.has_room(limits)):
                return None
            bytes_max = min(wanted.bytes_max, _CHUNK_BYTES)
            found = partition.log.read(Offset(at), end, bytes_max, at_least_one=True)
            if found is None:
                return None
            data = partition.log.read_bytes(found)
            stretches = list(
                stretches_of(data, at, min(found.end_offset, end), partition.log, read_committed)
            )
            acquired = state.acquire(
                member,
                stretches,
                limits,
                wanted.records_max,
                self._owner.now_ms(),
                is_strict=wanted.is_strict,
            )
            self._persist(state.take_write())
            if acquired:
                self._owner.acquired_count += sum(a.last - a.first + 1 for a in acquired)
                self._owner.note_lock(state.next_lock_ms())
                return Taken(
                    covering(data, acquired[0].first, acquired[-1].last),
                    acquired,
                    _is_alone(acquired, limits),
                )
            if state.next_offset() <= at:
                return None
        self._owner.wake_soon(self)  # there may be something behind
        return None

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
        if self.state is None:
            raise InvalidRecordState("no record is acquired: the share partition is being loaded")
        limits, now_ms = self.settings.limits, self._owner.now_ms()
        write = self.state.acknowledge(
            member, acknowledgements, limits, now_ms, may_renew=may_renew
        )
        self._persist(write, done)
        self.wake()

    def release(self, member: str, *, counts: bool) -> None:
        """Give back what a member holds."""
        if self.state is not None:
            limits = self.settings.limits
            self._persist(self.state.release_member(member, limits, counts=counts))
            self.wake()

    def expire(self, now_ms: int) -> None:
        """End the locks whose time is over."""
        if self.state is None:
            return
        write = self.state.expire(self.settings.limits, now_ms)
        if write is not None:
            log.debug("acquisition locks ended", extra={"share_partition": self.key})
            self._persist(write)
            self.wake()

    def wake(self) -> None:
        for wake in list(self.waiting):
            wake()

    def drop(self, problem: ApiError) -> None:
        """Give up: those who wait get the error, and the next fetch loads the state again."""
        self.state, self.problem = None, problem
        self.wake()

    def _persist(self, write: StateWrite | None, done: Done | None = None) -> None:
        if write is None:
            if done is not None:
                done(None)
            return

        def note(problem: ApiError | None) -> None:
            if problem is not None:
                problem = client_error(problem)
                self._owner.drop(self, problem)
            if done is not None:
                done(problem)

        self._owner.write(self, write, note)


class SharePartitions:
    """Owner of the share partitions and sessions of a broker, and of the timer of all locks."""

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        share: ShareCoordinator,
        settings: Settings,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._replicas = replicas
        self._share = share
        self._settings = settings
        self._clock = clock
        self._note_defect = note_defect
        self._loop = asyncio.get_running_loop()
        self._led: dict[SharePartitionKey, LedSharePartition] = {}
        self._loads: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._group_settings = ShareGroupSettings(state, settings)
        self._is_closed = False
        self.acquired_count = 0  # records, since the broker started
        self.sessions = ShareSessions()
        self.waiting: dict[SessionKey, Callable[[], None]] = {}  # ends the wait of a fetch

    def find(self, key: SharePartitionKey) -> LedSharePartition:
        """The share partition; it is loaded if it is new."""
        partition = self._replicas.locate(key.topic_id, key.partition)
        led = self._led.get(key)
        if led is not None and led.partition is not partition:
            self.drop(led, NotLeader(f"{partition.tp} has another leader epoch"))
            led = None
        if led is None:
            led = self._led[key] = LedSharePartition(self, key, partition)
            task = self._loop.create_task(self._load(led))
            self._loads[task] = None
            task.add_done_callback(self._note_loaded)
        return led

    def find_acquired(self, key: SharePartitionKey) -> LedSharePartition:
        """The share partition, for a member that has acquired records of it."""
        partition = self._replicas.locate(key.topic_id, key.partition)
        led = self._led.get(key)
        if led is None or led.partition is not partition:
            raise InvalidRecordState("no record of the partition is acquired here")
        return led

    def drop(self, led: LedSharePartition, problem: ApiError) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]
            log.info(
                "share partition dropped", extra={"share_partition": led.key, "reason": problem}
            )
        led.drop(problem)

    def drop_group(self, group_id: str) -> None:
        """Have the states of a group's partitions read again: they were begun anew."""
        for led in [led for key, led in self._led.items() if key.group_id == group_id]:
            self.drop(led, NotLeader("the state was begun anew"))

    def settings_of(self, group_id: str) -> GroupSettings:
        return self._group_settings.of(group_id)

    @property
    def wait_max_ms(self) -> int:
        """How long a fetch may wait at most."""
        return self._settings.broker.fetch_wait_max_ms

    @property
    def bytes_max(self) -> int:
        """How many bytes of records a response may have, about."""
        return self._settings.broker.fetch_bytes_max

    def wake_soon(self, led: LedSharePartition) -> None:
        self._loop.call_soon(led.wake)

    def close(self) -> None:
        """Respond to all fetches that wait; stop loading."""
        self._is_closed = True
        for end in list(self.waiting.values()):
            end()
        for task in self._loads:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    # Sessions

    def end_session(self, session: ShareSession, *, counts: bool) -> None:
        """Give back what the member of a closed session holds."""
        if self._is_closed:
            return  # as after a crash: what was acquired is available when the state is read again
        group_id, member_id = session.key
        for topic_id, index in session.partitions:
            key = SharePartitionKey(group_id, topic_id, index)
            led = self._led.get(key)
            if led is not None:
                led.release(member_id, counts=counts)
            self.forget_unused(group_id, SharedPartition(topic_id, index))

    def forget_unused(self, group_id: str, partition: SharedPartition) -> None:
        """Keep no share partition in memory that no session has, and no member has records of.

        A member that gives up a partition still acknowledges what it has acquired.
        """
        if self.sessions.is_used(group_id, partition):
            return
        key = SharePartitionKey(group_id, *partition)
        led = self._led.get(key)
        if led is not None and not led.is_held:
            del self._led[key]

    # Metrics

    def counts(self) -> ShareCounts:
        """Counts for metrics; lag is that of partitions that members read here."""
        lags = Counter[tuple[str, str]]()
        loaded = [led for led in self._led.values() if led.state is not None]
        for led in loaded:
            lags[led.key.group_id, led.partition.tp.topic] += led.lag
        return ShareCounts(
            len(self.sessions),
            len(loaded),
            self.acquired_count,
            [(group_id, topic, lag) for (group_id, topic), lag in sorted(lags.items())],
        )

    # States

    def write(self, led: LedSharePartition, write: StateWrite, done: Done) -> None:
        key, state_epoch, leader_epoch = led.key, led.state_epoch, led.partition.leader_epoch
        try:
            self._share.submit(
                str(key),
                _WriteTicket(done),
                lambda states, ticket, now_ms: states.write(
                    ticket, key, state_epoch, leader_epoch, write, now_ms
                ),
            )
        except ApiError as problem:
            done(problem)

    async def _load(self, led: LedSharePartition) -> None:
        try:
            read = await self._read(led)
        except ApiError as problem:
            self.drop(led, client_error(problem))
            return
        if led.problem is None:
            led.state_epoch = read.state_epoch
            led.state = SharePartition.restore(read)
            led.wake()

    async def _read(self, led: LedSharePartition) -> StateRead:
        """The state; where a group begins to read is decided and written the first time."""
        key, leader_epoch = led.key, led.partition.leader_epoch
        read = await self._read_loaded(key, leader_epoch)
        if read.start_offset != NO_START:
            return read
        start = self._first_offset(led)
        refused: ApiError | None = await self._share.run(
            str(key),
            lambda states, ticket, now_ms: states.write(
                ticket, key, read.state_epoch, leader_epoch, StateWrite(start, 0, ()), now_ms
            ),
        )
        if refused is not None:
            raise refused
        return read._replace(start_offset=start)

    async def _read_loaded(self, key: SharePartitionKey, leader_epoch: int) -> StateRead:
        for _ in range(_LOAD_TRIES):
            try:
                read: StateRead | ApiError = await self._share.run(
                    str(key),
                    lambda states, ticket, now_ms: states.read(ticket, key, leader_epoch, now_ms),
                )
            except CoordinatorLoadInProgress:
                await asyncio.sleep(_LOAD_PAUSE_S)
                continue
            if isinstance(read, ApiError):
                raise read
            return read
        raise CoordinatorNotAvailable(f"the state of {key} is still being read")

    def _first_offset(self, led: LedSharePartition) -> Offset:
        """The offset that `share.auto.offset.reset` means now."""
        reset = led.settings.config.share_auto_offset_reset
        partition = led.partition
        if reset == _EARLIEST:
            return partition.log.start_offset
        if reset.startswith(_BY_DURATION):
            since_ms = self._clock.now_ms() - duration_ms(reset.removeprefix(_BY_DURATION))
            found = partition.log.offset_for_time(TimestampMs(max(since_ms, 0)))
            return partition.high_watermark if found is None else found.offset
        return partition.high_watermark

    def _note_loaded(self, task: "asyncio.Task[None]") -> None:
        self._loads.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    # Locks

    def now_ms(self) -> int:
        """A time that does not jump when the machine's clock is set."""
        return int(self._clock.monotonic_s() * 1000)

    def note_lock(self, end_ms: int | None) -> None:
        """Set the only timer to the first lock that ends."""
        if end_ms is None or (self._timer is not None and self._timer_ms <= end_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = end_ms
        delay_s = max(end_ms - self.now_ms(), 0) / 1000
        self._timer = self._loop.call_later(delay_s, self._end_locks)

    def _end_locks(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        for led in list(self._led.values()):
            led.expire(now_ms)
            self.forget_unused(led.key.group_id, SharedPartition(*led.key[1:]))
        for led in self._led.values():
            if led.state is not None:
                self.note_lock(led.state.next_lock_ms())


class _WriteTicket(Ticket[ApiError | None]):
    """A ticket whose response goes to a callback."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def deliver(self, value: ApiError | None) -> None:
        self._done(value)

    def fail(self, error: ApiError) -> None:
        self._done(error)


def client_error(problem: ApiError) -> ApiError:
    """The error that a member gets when the state of a share partition cannot be used."""
    if problem.code in _RETRIABLE:
        return CoordinatorNotAvailable(str(problem))
    if problem.code in _REPLACED:
        return NotLeader(str(problem))
    return problem


def _is_alone(acquired: Sequence[Acquired], limits: ShareLimits) -> bool:
    return any(
        portion_max(item.deliveries - 1, 1, limits.deliveries_max) is not None for item in acquired
    )
