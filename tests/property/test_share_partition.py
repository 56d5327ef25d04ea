"""A share partition is a table of offsets, whatever members, locks and crashes do.

The model keeps one row for each offset. Every write is combined with what was kept before, as the
share coordinator does, and a crash continues from that.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.errors import ApiError
from ottla.model import Offset
from ottla.queues.acknowledgements import GROUP_BACKOFF, Acknowledgement, AcknowledgeType
from ottla.queues.share_limits import ShareLimits, portion_max
from ottla.queues.share_partition import SharePartition, Stretch
from ottla.queues.share_state import DeliveryState, StateBatch, StateRead, StateWrite, combine
from sizes import examples

LIMITS = ShareLimits(deliveries_max=4, locks_max=12, lock_ms=100, backoff_ms=30, backoff_max_ms=70)
WAITS_MS = {1: 30, 2: 60, 3: 70}  # by deliveries
AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
members = st.sampled_from("abc")


@dataclass
class Row:
    """One offset: `count` and `state` as they should be, and as they were last written."""

    state: DeliveryState = AVAILABLE
    count: int = 0
    member: str = ""
    until_ms: int = 0  # the end of its lock, or of its wait
    written: tuple[DeliveryState, int, int] = (AVAILABLE, 0, 0)

    def is_ready(self, now_ms: int) -> bool:
        return self.state is AVAILABLE and self.until_ms <= now_ms


class SharePartitionMachine(RuleBasedStateMachine):
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.partition = SharePartition.restore(StateRead(0, Offset(0), ()))
        self.rows: dict[int, Row] = {}
        self.batches: list[tuple[int, int, bool]] = []  # of the log
        self.log_start = 0
        self.now_ms = 0
        self.kept: tuple[StateBatch, ...] = ()
        self.kept_start = Offset(0)

    @property
    def log_end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def keep(self, written: StateWrite | None) -> None:
        if written is None:
            return
        assert written.start_offset >= self.kept_start, "the start offset only rises"
        self.kept = combine(self.kept, written.batches, written.start_offset)
        self.kept_start = written.start_offset
        for row in self.rows.values():
            if row.state is not ACQUIRED or self.limits.is_lease_durable:
                row.written = (row.state, row.count, row.until_ms)

    @rule(size=st.integers(1, 5), has_records=st.sampled_from([True, True, True, False]))
    def append(self, size: int, has_records: bool) -> None:
        self.batches.append((self.log_end, self.log_end + size, has_records))

    @rule(member=members, records_max=st.integers(1, 8), is_strict=st.booleans())
    def acquire(self, member: str, records_max: int, is_strict: bool) -> None:
        begin = self.partition.next_offset(self.now_ms)
        found = [
            Stretch(Offset(max(start, begin)), Offset(end), has, not has and end % 2 == 1)
            for start, end, has in self.batches
            if end > begin
        ]
        assert not any(row.is_ready(self.now_ms) for at, row in self.rows.items() if at < begin)
        before = {at: row.count for at, row in self.rows.items()}
        acquired = self.partition.acquire(
            member, found, self.limits, records_max, self.now_ms, is_strict=is_strict
        )
        offsets = [(at, a.deliveries) for a in acquired for at in range(a.first, a.last + 1)]
        for at, count in offsets:
            row = self.rows.setdefault(at, Row())
            assert row.is_ready(self.now_ms), "one holder, and not before its time"
            row.state, row.member = ACQUIRED, member
            row.count += 1
            row.until_ms = self.now_ms + self.limits.lock_ms
            assert row.count == count <= self.limits.deliveries_max
        assert [at for at, _ in offsets] == sorted(at for at, _ in offsets)
        if is_strict:
            assert len(offsets) <= records_max
        if any(count == self.limits.deliveries_max for _, count in offsets):
            assert len(offsets) == 1, "the last delivery is of one record alone"
        if any(portion_max(before.get(at, 0), 1, self.limits.deliveries_max) for at, _ in offsets):
            assert len({count for _, count in offsets}) == 1
        self._note_archived(found)
        self.keep(self.partition.take_write())

    def _note_archived(self, found: list[Stretch]) -> None:
        """Markers below the window's end are finished now; those behind it are not met yet."""
        for start, end, has, _ in found:
            if has or end > self.partition.end_offset:
                continue
            for at in range(start, end):
                row = self.rows.setdefault(at, Row())
                if row.state is AVAILABLE:
                    row.state, row.until_ms = ARCHIVED, 0

    @rule(
        member=members,
        first=st.integers(0, 60),
        types=st.lists(st.integers(0, 4), min_size=1, max_size=5),
        may_renew=st.booleans(),
        delay_ms=st.sampled_from([GROUP_BACKOFF, GROUP_BACKOFF, 0, 1, 50]),
        is_uncounted=st.booleans(),
    )
    def acknowledge(
        self,
        member: str,
        first: int,
        types: list[int],
        may_renew: bool,
        delay_ms: int,
        is_uncounted: bool,
    ) -> None:
        last = first + len(types) - 1
        said = [Acknowledgement(Offset(first), Offset(last), types, delay_ms, is_uncounted)]
        start = self.partition.start_offset
        rows = {at: self.rows.get(at) for at in range(max(first, start), last + 1)}
        is_held = all(
            r is not None and r.state is ACQUIRED and r.member == member for r in rows.values()
        )
        renews = any(types[at - first] == AcknowledgeType.RENEW for at in rows)
        is_valid = is_held and last < self.partition.end_offset and (may_renew or not renews)
        try:
            written = self.partition.acknowledge(
                member, said, self.limits, self.now_ms, may_renew=may_renew
            )
        except ApiError:
            assert not is_valid
            return
        assert is_valid
        for at, row in rows.items():
            assert row is not None
            kind = AcknowledgeType(types[at - first])
            if kind is AcknowledgeType.RENEW:
                row.until_ms = self.now_ms + self.limits.lock_ms
            elif kind is AcknowledgeType.RELEASE and is_uncounted:
                self._make_available(row, max(delay_ms, 0))
                row.count -= 1
            elif kind is AcknowledgeType.RELEASE:
                self._release(row, delay_ms)
            else:
                row.state = ACKNOWLEDGED if kind is AcknowledgeType.ACCEPT else ARCHIVED
        self.keep(written)

    def _make_available(self, row: Row, delay_ms: int = 0) -> None:
        row.state, row.until_ms = AVAILABLE, self.now_ms + delay_ms if delay_ms else 0

    def _release(self, row: Row, delay_ms: int = GROUP_BACKOFF) -> None:
        if row.count >= self.limits.deliveries_max:
            row.state = ARCHIVED
        else:
            self._make_available(row, WAITS_MS[row.count] if delay_ms < 0 else delay_ms)

    @rule(passed_ms=st.integers(1, 120))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for row in self.rows.values():
            if row.state is ACQUIRED and row.until_ms <= self.now_ms:
                self._release(row)
        self.keep(self.partition.expire(self.limits, self.now_ms))

    @rule(member=members, counts=st.booleans())
    def leave(self, member: str, counts: bool) -> None:
        for row in self.rows.values():
            if row.state is ACQUIRED and row.member == member:
                if counts:
                    self._release(row)
                else:
                    self._make_available(row)
                    row.count -= 1
        self.keep(self.partition.release_member(member, self.limits, self.now_ms, counts=counts))

    @rule(data=st.data())
    def remove_old_records(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, self.log_end))
        for at in range(self.log_start):
            self.rows.setdefault(at, Row()).state = ARCHIVED
        self.keep(self.partition.note_log_start(self.log_start))

    @rule()
    def crash(self) -> None:
        """What is acquired is available again, with the count that was last written; or it stays
        acquired by its member, for one lock duration."""
        leased_until_ms = self.now_ms + self.limits.lock_ms
        read = StateRead(0, self.kept_start, self.kept)
        self.partition = SharePartition.restore(read, leased_until_ms)
        for at, row in list(self.rows.items()):
            if row.state is ACQUIRED and self.limits.is_lease_durable:
                row.until_ms = leased_until_ms
            elif row.state is ACQUIRED:
                row.state, row.count, row.until_ms = row.written
            if at >= self.partition.end_offset:
                del self.rows[at]

    @invariant()
    def table_and_ranges_agree(self) -> None:
        partition = self.partition
        for at in range(partition.start_offset):
            assert self.rows[at].state.is_final
        for item in partition._ranges:
            for at in range(item.start, item.end):
                row = self.rows.get(at, Row())
                assert item.state is row.state, at
                if not row.state.is_final:
                    assert item.count == row.count, at
                    assert item.until_ms == row.until_ms
                if row.state is ACQUIRED:
                    assert item.member == row.member
        ends = [item.end for item in partition._ranges]
        starts = [item.start for item in partition._ranges]
        assert [partition.start_offset, *ends] == [*starts, partition.end_offset]

    @invariant()
    def the_window_is_bounded(self) -> None:
        longest = 5  # a batch that was begun is acquired as a whole
        most = self.limits.locks_max + self.limits.waiting_max + longest
        assert self.partition.unfinished_count < most


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)


class DurableLeasesMachine(SharePartitionMachine):
    limits = LIMITS._replace(is_lease_durable=True)


TestDurableLeases = DurableLeasesMachine.TestCase
TestDurableLeases.settings = TestSharePartition.settings
