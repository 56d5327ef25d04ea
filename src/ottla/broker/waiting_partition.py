"""The records of a led partition that wait: judged when appended, released when due.

What waits follows from the log alone. A new leader reads its log once, from the start to the end,
and goes on with what it appends itself; until it has read all, nothing is released. A leader
decides by what it has appended, committed or not: what it ends lies before the end in every log.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ottla.broker.waiting_contents import WaitingContents
from ottla.errors import (
    ApiError,
    LeaderNotAvailable,
    NotLeader,
    PolicyViolation,
    RequestTimedOut,
    StorageFailed,
)
from ottla.model import Offset, ProducerId, TimestampMs
from ottla.queues.pending_records import PendingRecords, Waiting
from ottla.queues.waiting_commands import Judged, Rules, judge, refuse_cancels
from ottla.queues.waiting_copies import CopyBatch
from ottla.queues.waiting_facts import Facts, read_facts, states_facts
from ottla.records.batch import (
    BatchHeader,
    Marker,
    MarkerKind,
    batches,
    decompressed_bytes_max,
    read_header,
    read_marker,
    stamp,
)
from ottla.records.hidden_records import TicketEnd
from ottla.replication.partition import ACKS_ALL, LeaderPartition
from ottla.replication.waiters import Settled
from ottla.storage.log_append import Appended

log = logging.getLogger("ottla.broker")

LOAD_BYTES: Final = 1 << 18  # of a log that are read in one turn of the loop
STUCK_RETRY_MS: Final = 60_000
_CLEARING_MAX: Final = 1000  # requests that wait until the log may begin later
_COPIES_BYTES: Final = 1 << 20
_TAKE_FIRST: Final = 256
_TAKE_MIN: Final = 32


class WaitingPartition:
    """Owner of what waits in one partition, as long as it is led here."""

    def __init__(
        self,
        partition: LeaderPartition,
        due_now_ms: Callable[[], TimestampMs],
        want_look: Callable[["WaitingPartition"], None],
    ) -> None:
        """`want_look` is called when something may be due earlier than it was."""
        self.partition = partition
        self.pending = PendingRecords()
        self.is_closed = False
        self.released_count = 0
        self.cancelled_count = 0
        self.stuck: list[Waiting] = []  # records that could not be read when they were due
        self._stuck_ms = 0  # when those were looked at last
        self._due_now_ms = due_now_ms
        self._want_look = want_look
        self._loaded_to = partition.log.start_offset
        self._cleared_to = partition.log.start_offset
        self._clear_to = self._cleared_to
        self._clearing: list[tuple[Offset, Settled]] = []
        self._is_clearing_held = False
        self._take_max = _TAKE_FIRST  # records that the next release looks at
        self._rearmed_after = -1  # the ticket behind which a pass goes on
        self._judged: Judged | None = None
        self._contents = WaitingContents(partition.log)

    @property
    def is_loaded(self) -> bool:
        """True once everything in the log is known."""
        return self._loaded_to >= self.partition.log.end_offset

    def close(self) -> None:
        """The partition is no longer led here."""
        self.is_closed = True
        self._note_cleared(self._cleared_to, NotLeader("the partition is no longer led here"))
        self.pending = PendingRecords()
        self._contents = WaitingContents(self.partition.log)
        self._want_look(self)

    def retry_stuck(self, due_now_ms: int) -> None:
        """Have records that could not be read looked at again, once a minute."""
        if self.stuck and due_now_ms - self._stuck_ms >= STUCK_RETRY_MS:
            self._stuck_ms = due_now_ms
            stuck, self.stuck = self.stuck, []
            for one in stuck:
                self.pending.put_back(one)

    # Appending

    def append(self, batch: memoryview, now_ms: TimestampMs) -> Appended:
        """Append a producer's batch; some of its records may wait, or cancel."""
        self._judged = None
        partition = self.partition
        appended = partition.log.append_judged(batch, partition.leader_epoch, now_ms, self._judge)
        judged, self._judged = self._judged, None
        if appended.is_duplicate or self._loaded_to != appended.base_offset:
            return appended  # what is being read comes to it
        if judged is not None:
            stamp(judged.batch, appended.base_offset, partition.leader_epoch)
            self._note(judged.batch, read_header(judged.batch))
            self._want_look(self)
        self._loaded_to = partition.log.end_offset
        return appended

    def _judge(
        self, batch: bytearray | memoryview, header: BatchHeader, append_time_ms: TimestampMs
    ) -> tuple[bytearray, int] | None:
        config = self.partition.log.config
        rules = Rules(
            now_ms=self._due_now_ms(),
            delay_max_ms=config.delay_max_ms,
            is_enabled=config.delay_enable,
            decompressed_bytes_max=decompressed_bytes_max(config.max_message_bytes),
            append_time_ms=append_time_ms,
        )
        judged = judge(batch, header, rules)
        if judged is None:
            return None
        pending = self.pending
        count = pending.count + pending.undecided_count + judged.arm_count
        if judged.arm_count and count > config.delay_pending_max:
            raise PolicyViolation(
                f"{pending.count} records wait in {self.partition.tp}, and delay.pending.max allows"
                f" {config.delay_pending_max}: send later, or raise it"
            )
        if judged.cancels:
            self._check_cancels(judged, header.record_count)
        self._judged = judged
        return judged.batch, judged.max_timestamp_ms

    def _check_cancels(self, judged: Judged, count: int) -> None:
        """Refuse cancels that do nothing, if nothing else is in the batch."""
        if not self.is_loaded:
            raise LeaderNotAvailable(f"{self.partition.tp}: what waits is being read, try again")
        if not judged.is_all_cancels:
            return
        problems = []
        named: set[int] = set()
        for index, ticket in judged.cancels:
            found = self.pending.next_of(ticket)
            found = ticket if found is None else found
            if found in named:
                problems.append((index, TicketEnd.CANCELLED.about(ticket)))
            elif self.pending.find(found) is None:
                problems.append((index, self.pending.absence(found)))
            named.add(found)
        if problems:
            raise refuse_cancels(problems, count)

    def note_marker(self, marker: Marker, producer_id: ProducerId, end: Offset) -> None:
        """A transaction has ended: its records wait from now on, or never did."""
        if self._loaded_to != end - 1:
            return  # what is being read comes to it
        self.pending.decide(producer_id, is_committed=marker.kind is MarkerKind.COMMIT)
        self._loaded_to = end
        self._is_clearing_held = False
        self._want_look(self)

    # Reading what is there

    def load(self) -> bool:
        """Read on in the log; returns whether there is more. Raises for a part that is damaged."""
        partition_log = self.partition.log
        if self.is_loaded:
            return False
        self._loaded_to = max(self._loaded_to, partition_log.start_offset)
        found = partition_log.read(
            self._loaded_to, partition_log.end_offset, LOAD_BYTES, at_least_one=True
        )
        if found is None:
            return False
        for header, batch in batches(partition_log.read_bytes(found)):
            if header.next_offset > self._loaded_to:  # the log may start inside of a batch
                self._note(batch, header)
        self._loaded_to = found.end_offset
        return not self.is_loaded

    def _note(self, batch: bytearray | memoryview, header: BatchHeader) -> None:
        """Apply what a batch of the log says, whether it was read or has just been appended."""
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and header.producer_id >= 0:
                is_committed = marker.kind is MarkerKind.COMMIT
                self.pending.decide(header.producer_id, is_committed=is_committed)
        elif states_facts(header):
            facts = read_facts(batch, header, self._bytes_max)
            self._apply(facts, header.producer_id if header.is_transactional else None)

    def _apply(self, facts: Facts, producer_id: int | None) -> None:
        self.released_count += len(facts.released)
        self.cancelled_count += len(facts.cancelled)
        self.pending.apply(facts, producer_id)

    @property
    def _bytes_max(self) -> int:
        return decompressed_bytes_max(self.partition.log.config.max_message_bytes)

    # Releasing

    def release(self, portion: int, now_ms: TimestampMs) -> bool:
        """Release some of what is due, in one batch; returns whether there may be more.

        At most `portion` records: fewer where they are large, or scattered over many batches.
        Copies are stamped with `now_ms`, and what became due since it was read waits for the next
        call. A schedule goes on after the time that is compared with due times: `now_ms` may be
        that of a clock which was set forward, and is not believed. Raises an error of the log or
        of too few replicas in sync, and nothing has changed.
        """
        until_ms = min(now_ms, self._due_now_ms())
        due, has_more = self.pending.take_due(until_ms, min(portion, self._take_max))
        if not due:
            return has_more
        taken = 0
        try:
            copies, unreadable, count = self._copies(due, until_ms, portion)
            self._append_own(copies, now_ms)
            taken = count
            self.stuck += unreadable
        finally:
            if taken < len(due):
                self._take_max = max(2 * taken, _TAKE_MIN)  # what comes next is most often alike
            elif has_more:
                self._take_max = min(2 * self._take_max, portion)
            for one in reversed(due[taken:]):
                self.pending.put_back(one)
        return has_more or taken < len(due)

    def _copies(
        self, due: Sequence[Waiting], until_ms: TimestampMs, portion: int
    ) -> tuple[CopyBatch, list[Waiting], int]:
        """Copies of what is due, as many as fit into a batch; the records that cannot be read; how
        many records that is in all."""
        contents, config = self._contents, self.partition.log.config
        copies = CopyBatch(self.partition.log.end_offset)
        unreadable: list[Waiting] = []
        bytes_max = min(_COPIES_BYTES, config.max_message_bytes)
        units_max = contents.units + portion
        taken = 0
        for one, original in zip(due, contents.originals(due), strict=True):
            taken += 1
            if original is None:
                unreadable.append(one)
            else:
                copies.release(original, one, until_ms)
            if copies.size_bytes >= bytes_max or contents.units + taken >= units_max:
                break
        return copies, unreadable, taken

    # The start of the log

    @property
    def is_empty(self) -> bool:
        """True if nothing waits, as far as is known, and all is known."""
        return self.is_loaded and not self.pending.count and not self.pending.undecided_count

    @property
    def waiting_bytes(self) -> int:
        """About the bytes of what waits, which count for no limit of the log's size."""
        return self.pending.waiting_bytes

    def clear(self, below: Offset, done: Settled | None = None) -> Offset:
        """The offset below which nothing waits, for good: the log may begin there.

        It rises to `below` soon: what waits there is appended again. `done` is called then, or
        with the reason why it will not rise.
        """
        if below > self._cleared_to:
            self._clear_to = max(self._clear_to, below)
            if done is not None:
                if len(self._clearing) >= _CLEARING_MAX:
                    done(RequestTimedOut("too many requests wait for the start of the log"))
                else:
                    self._clearing.append((below, done))
            self._want_look(self)
        elif done is not None:
            done(None)
        return min(below, self._cleared_to)

    def clear_if_worth(self, below: Offset) -> Offset:
        """Like `clear`, if that frees more of the disk than appending again takes."""
        sealed = self.partition.log.sealed_segments
        freed_bytes = sum(one.size_bytes for one in sealed if one.end_offset <= below)
        if freed_bytes > 2 * self.pending.waiting_bytes:
            return self.clear(below)
        lowest = self.pending.lowest_offset() if self.is_loaded else self._cleared_to
        return below if lowest is None else min(below, lowest)

    @property
    def wants_rearm(self) -> bool:
        """True if something is to be appended again."""
        return self._clear_to > self._cleared_to and not self._is_clearing_held

    def rearm(self, portion: int, now_ms: TimestampMs) -> bool:
        """Append some of what waits too low again; returns whether there may be more of it."""
        below = self._clear_to
        found, after = self.pending.below(below, self._rearmed_after, portion)
        copies = CopyBatch(self.partition.log.end_offset)
        units_max = self._contents.units + portion
        for taken, (one, original) in enumerate(
            zip(found, self._contents.originals(found), strict=True), start=1
        ):
            if original is None:
                raise StorageFailed(f"{self.partition.tp}: ticket {one.ticket} cannot be read")
            copies.rearm(original, one)
            if copies.size_bytes >= _COPIES_BYTES or self._contents.units + taken >= units_max:
                after = one.ticket
                break
        self._append_own(copies, now_ms)
        if after is not None:
            self._rearmed_after = after
            return True
        self._rearmed_after = -1
        self._is_clearing_held = True  # until the copies are committed
        lowest = self.pending.lowest_offset()
        cleared = below if lowest is None else Offset(min(below, lowest))
        end = self.partition.log.end_offset
        if self.partition.is_settled(end, ACKS_ALL):
            self._note_cleared(cleared, None)
        else:
            self.partition.wait_settled(end, ACKS_ALL, partial(self._note_cleared, cleared))
        return False

    def _note_cleared(self, offset: Offset, problem: ApiError | None) -> None:
        """The copies are committed, or cannot be any more."""
        waiters = self._clearing
        if problem is None:
            # Held as long as a transaction waits lower: its end lets it go on.
            self._is_clearing_held = offset <= self._cleared_to
            self._cleared_to = max(self._cleared_to, offset)
            waiters = [one for one in waiters if one[0] <= self._cleared_to]
            self._clearing = [one for one in self._clearing if one[0] > self._cleared_to]
        else:
            self._is_clearing_held, self._clearing = False, []
            self._clear_to = self._cleared_to
        for _, done in waiters:
            done(problem)

    def _append_own(self, copies: CopyBatch, now_ms: TimestampMs) -> None:
        """Append the copies, if there are any, and apply what they say."""
        if not copies.size_bytes:
            return
        appended = self.partition.append_built(copies.build(now_ms), now_ms)
        assert appended.base_offset == self._loaded_to, "copies are made of a log that is known"
        self._apply(copies.facts, None)
        self._loaded_to = self.partition.log.end_offset
