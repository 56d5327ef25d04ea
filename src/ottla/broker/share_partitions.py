"""Share partitions of the partitions that this broker leads: reading, writing, waiting.

The state of a share partition is loaded with its first fetch and dropped with its last session, or
when a change of it could not be written: then it is not known what was, and it is loaded again.
What members had acquired is available again after that, as after a crash, unless their leases are
durable: those are restored for one lock duration.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from ottla.broker.dead_letters import DeadLetters
from ottla.broker.led_share_partition import LedSharePartition, client_error
from ottla.broker.share_metrics import ShareCounts
from ottla.broker.share_reading import duration_ms
from ottla.broker.share_settings import GroupSettings, ShareGroupSettings
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.cluster.state import ClusterState
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.share.routing import CallTicket, ShareStateRouter
from ottla.coordinator.share.state_calls import StateResult, Summarize, Write
from ottla.errors import (
    ApiError,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidTopic,
    NotLeader,
)
from ottla.model import Offset, TimestampMs
from ottla.queues.acknowledgements import RETRY_DELAY_MAX_MS
from ottla.queues.errors import InvalidRecordState
from ottla.queues.share_partition import SharePartition
from ottla.queues.share_sessions import SessionKey, SharedPartition, ShareSession, ShareSessions
from ottla.queues.share_state import (
    NO_START,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateSummary,
    StateWrite,
)
from ottla.replication.replicas import Replicas
from ottla.settings import Settings

log = logging.getLogger("ottla.broker")

_NO_STATE: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_EARLIEST: Final = "earliest"
_BY_DURATION: Final = "by_duration:"


class SharePartitions:
    """Owner of the share partitions and sessions of a broker, and of the timer of all locks."""

    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        states: ShareStateRouter,
        settings: Settings,
        clock: Clock,
        note_defect: Callable[[BaseException], None],
        dead_letters: DeadLetters,
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._states = states
        self._settings = settings
        self._clock = clock
        self._note_defect = note_defect
        self.loop = asyncio.get_running_loop()
        self._led: dict[SharePartitionKey, LedSharePartition] = {}
        self._loads: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._group_settings = ShareGroupSettings(state, settings)
        self._is_closed = False
        self.dead_letters = dead_letters
        self.acquired_count = 0  # records, since the broker started
        self.sessions = ShareSessions()
        self.waiting: dict[SessionKey, Callable[[], None]] = {}  # ends the wait of a fetch

    def find(self, key: SharePartitionKey) -> LedSharePartition:
        """The share partition; it is loaded if it is new."""
        group_id, topic_id, index = key
        partition = self._replicas.locate(topic_id, index)
        dead_letter_topic = self.settings_of(group_id).config.dead_letter_topic
        if dead_letter_topic and partition.tp.topic == dead_letter_topic:
            raise InvalidTopic(
                f"{dead_letter_topic} takes the dead letters of the group: it cannot read them too"
            )
        led = self._led.get(key)
        if led is not None and led.partition is not partition:
            self.drop(led, NotLeader(f"{partition.tp} has another leader epoch"))
            led = None
        if led is None:
            led = self._led[key] = LedSharePartition(self, key, partition)
            task = self.loop.create_task(self._load(led))
            self._loads[task] = None
            task.add_done_callback(self._note_loaded)
        return led

    def find_acquired(self, key: SharePartitionKey) -> LedSharePartition:
        """The share partition, for a member that has acquired records of it."""
        group_id, topic_id, index = key
        partition = self._replicas.locate(topic_id, index)
        led = self._led.get(key)
        if led is None or led.partition is not partition:
            if self.settings_of(group_id).limits.is_lease_durable:
                return self.find(key)  # the lease may be older than the leader
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

    def image(self) -> ClusterImage:
        return self._state.image

    def check_state(self, key: SharePartitionKey) -> None:
        """Have a state looked at that is in memory: another broker may have begun it anew.

        A state with other offsets, or none, is no state that this leader may write: its next write
        is refused. This finds out before a new session has waited for one.
        """
        led = self._led.get(key)
        if led is None or led.state is None:
            return

        def note(result: StateResult) -> None:
            if isinstance(result, StateSummary):
                is_other = result.state_epoch != led.state_epoch
            else:
                is_other = isinstance(result, ApiError) and result.code == _NO_STATE
            if is_other and self._led.get(key) is led:
                self.drop(led, NotLeader("the state was begun anew"))

        self._states.submit(Summarize(key), CallTicket(note))

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

    @property
    def dead_max(self) -> int:
        """How many dead records a share partition may have whose dead letters are not written."""
        return self._settings.broker.dead_letters_pending_max

    def resume(self, keys: Iterable[SharePartitionKey]) -> None:
        """Load share partitions with dead letters to write: no member may read them any more."""
        if self._is_closed:
            return
        for key in keys:
            with contextlib.suppress(ApiError):  # led elsewhere, or not yet
                self.find(key)

    def wake_soon(self, led: LedSharePartition) -> None:
        self.loop.call_soon(led.wake)

    def close(self) -> None:
        """Respond to all fetches that wait; stop loading."""
        self._is_closed = True
        for end in list(self.waiting.values()):
            end()
        for task in self._loads:
            task.cancel()
        for led in [led for led in self._led.values() if led.state is None]:
            led.drop(CoordinatorNotAvailable("the broker stops"))
        self.dead_letters.close()
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

        A member that gives up a partition still acknowledges what it has acquired. What is being
        loaded stays: it may find dead letters to write, and a second one would write them too.
        """
        if self.sessions.is_used(group_id, partition):
            return
        key = SharePartitionKey(group_id, *partition)
        led = self._led.get(key)
        if led is not None and led.state is not None and not led.is_held:
            del self._led[key]

    # Metrics

    def counts(self) -> ShareCounts:
        """Counts for metrics; lag is that of partitions that members read here."""
        lags = Counter[tuple[str, str]]()
        now_ms = self.now_ms()
        loaded = [led for led in self._led.values() if led.state is not None]
        for led in loaded:
            lags[led.key.group_id, led.partition.tp.topic] += led.lag
        return ShareCounts(
            len(self.sessions),
            len(loaded),
            self.acquired_count,
            [(group_id, topic, lag) for (group_id, topic), lag in sorted(lags.items())],
            sum(led.state.waiting_count(now_ms) for led in loaded if led.state is not None),
            sum(led.state.dead.count for led in loaded if led.state is not None),
            self.dead_letters.written_count,
            self.dead_letters.failed_count,
            sum(led.ordered_count for led in loaded),
        )

    # States

    def write(
        self, led: LedSharePartition, write: StateWrite, ticket: Ticket[ApiError | None]
    ) -> None:
        """Have a change of the state written once; the ticket gets None, or why it may not be."""
        if write.batches:
            write = write._replace(batches=self._written(write.batches))
        call = Write(led.key, led.state_epoch, led.partition.leader_epoch, write)
        self._states.submit(call, ticket)

    async def _load(self, led: LedSharePartition) -> None:
        try:
            read = await self._read(led)
        except ApiError as problem:
            self.drop(led, client_error(problem))
            return
        if led.problem is None:
            led.state_epoch = read.state_epoch
            led.state = SharePartition.restore(
                read._replace(batches=self._restored(read.batches)),
                self.now_ms() + led.settings.limits.lock_ms,
            )
            self.note_deadline(led.state.next_deadline_ms(self.now_ms()))
            led.wake()
            self.dead_letters.begin(led)
            self.forget_unused(led.key.group_id, SharedPartition(*led.key[1:]))

    def _written(self, batches: tuple[StateBatch, ...]) -> tuple[StateBatch, ...]:
        """Batches with the times at which waits end as others can read them."""
        ahead_ms = self._clock.now_ms() - self.now_ms()
        return tuple(
            batch._replace(not_before_ms=batch.not_before_ms + ahead_ms)
            if batch.not_before_ms
            else batch
            for batch in batches
        )

    def _restored(self, batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
        """The inverse of `_written`. Whatever became of the clock, no wait is longer than any."""
        now_ms = self.now_ms()
        ahead_ms, last_ms = self._clock.now_ms() - now_ms, now_ms + RETRY_DELAY_MAX_MS
        return tuple(
            batch._replace(not_before_ms=max(min(batch.not_before_ms - ahead_ms, last_ms), 0))
            if batch.not_before_ms
            else batch
            for batch in batches
        )

    async def _read(self, led: LedSharePartition) -> StateRead:
        """The state; where a group begins to read is decided and written the first time."""
        key, leader_epoch = led.key, led.partition.leader_epoch
        read = await self._states.read(key, leader_epoch)
        if read.start_offset != NO_START:
            return read
        start = self._first_offset(led)
        write = Write(key, read.state_epoch, leader_epoch, StateWrite(start, 0, ()))
        refused = await self._states.ask_once(write)
        if isinstance(refused, ApiError):
            raise refused
        return read._replace(start_offset=start)

    def _first_offset(self, led: LedSharePartition) -> Offset:
        """The offset that `share.auto.offset.reset` means now."""
        reset = led.settings.config.share_auto_offset_reset
        partition = led.partition
        if reset == _EARLIEST:
            return partition.log.start_offset
        if reset.startswith(_BY_DURATION):
            since_ms = self._clock.now_ms() - duration_ms(reset.removeprefix(_BY_DURATION))
            found = partition.log.times.first_since(TimestampMs(max(since_ms, 0)))
            if found is not None:
                return found.offset
        if partition.is_waited_for:
            raise CoordinatorNotAvailable(f"{partition.tp} has a new leader: its end is not known")
        return partition.high_watermark

    def _note_loaded(self, task: "asyncio.Task[None]") -> None:
        self._loads.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    # Locks and waits

    def now_ms(self) -> int:
        """A time that does not jump when the machine's clock is set."""
        return int(self._clock.monotonic_s() * 1000)

    def wall_ms(self) -> TimestampMs:
        """The time of the machine's clock, as timestamps of records have it."""
        return self._clock.now_ms()

    def note_deadline(self, end_ms: int | None) -> None:
        """Set the only timer to the first lock or wait that ends."""
        if end_ms is None or (self._timer is not None and self._timer_ms <= end_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = end_ms
        delay_s = max(end_ms - self.now_ms(), 0) / 1000
        self._timer = self.loop.call_later(delay_s, self._pass_time)

    def _pass_time(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        for led in list(self._led.values()):
            led.expire(now_ms)
            self.forget_unused(led.key.group_id, SharedPartition(*led.key[1:]))
        for led in self._led.values():
            if led.state is not None:
                self.note_deadline(led.state.next_deadline_ms(now_ms))
