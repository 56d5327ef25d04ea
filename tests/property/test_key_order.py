"""Records of a key are delivered one after the other, whatever members, locks and crashes do."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.model import Offset
from ottla.queues.acknowledgements import Acknowledgement, AcknowledgeType
from ottla.queues.share_limits import ShareLimits
from ottla.queues.share_partition import SharePartition, Stretch
from ottla.queues.share_state import StateBatch, StateRead, StateWrite, combine
from sizes import examples

LIMITS = ShareLimits(
    deliveries_max=4,
    locks_max=8,
    lock_ms=100,
    backoff_ms=30,
    backoff_max_ms=70,
    key_window_max=15,
    has_dead_letters=True,
)
KEYS = st.sampled_from([b"a", b"b", b"c", None])
members = st.sampled_from("mno")


class KeyOrderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes | None] = []  # of the log
        self.batches: list[tuple[int, int, bool]] = []
        self.held: dict[int, str] = {}
        self.finished: set[int] = set()
        self.waiting: dict[int, int] = {}  # until when, as far as it is known
        self.log_start = 0
        self.now_ms = 0
        self.kept: tuple[StateBatch, ...] = ()
        self.kept_start = Offset(0)
        self.partition = SharePartition.restore(StateRead(0, Offset(0), ()))
        self.partition.order_by_key(True)

    def keep(self, written: StateWrite | None) -> None:
        if written is not None:
            self.kept = combine(self.kept, written.batches, written.start_offset)
            self.kept_start = written.start_offset

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=5), is_data=st.sampled_from([True] * 4 + [False])
    )
    def append(self, keys: list[bytes | None], is_data: bool) -> None:
        start = len(self.keys)
        self.keys += keys if is_data else [None] * len(keys)
        self.batches.append((start, len(self.keys), is_data))

    def scan(self) -> None:
        """All that may be scanned, a batch at a time."""
        while self.partition.can_scan(LIMITS) and self.partition.scan_offset < len(self.keys):
            at = self.partition.scan_offset
            start, end, has = next(b for b in self.batches if b[1] > at)
            assert start <= at
            found = [Stretch(Offset(at), Offset(end), has)]
            self.partition.scan(found, dict(enumerate(self.keys)), LIMITS)
            if not has:
                self.finished |= set(range(at, end))
            self.keep(self.partition.take_write())

    def is_ready(self, at: int) -> bool:
        if at in self.held or at in self.finished or self.waiting.get(at, 0) > self.now_ms:
            return False
        key = self.keys[at]
        earlier = [e for e in range(at) if key is not None and self.keys[e] == key]
        return all(e in self.finished for e in earlier)

    @rule(member=members, records_max=st.integers(1, 5), reach=st.integers(1, 60))
    def acquire(self, member: str, records_max: int, reach: int) -> None:
        self.scan()
        scanned_to = self.partition.scan_offset
        ready = [at for at in range(min(scanned_to, len(self.keys))) if self.is_ready(at)]
        first = self.partition.next_ready(self.now_ms)
        assert first == (ready[0] if ready else None)
        end = (first or 0) + reach
        acquired = self.partition.acquire_ready(member, end, LIMITS, records_max, self.now_ms)
        offsets = [at for one in acquired for at in range(one.first, one.last + 1)]
        for at in offsets:
            assert self.is_ready(at), "no earlier record of the key is unfinished"
            assert at < end
            self.held[at] = member
        assert len(offsets) <= records_max
        if ready and len(self.held) - len(offsets) < LIMITS.locks_max:
            assert offsets, "what is ready is delivered"

    @rule(member=members, kind=st.sampled_from([1, 2, 2, 3]), delay_ms=st.sampled_from([-1, 0, 50]))
    def acknowledge(self, member: str, kind: int, delay_ms: int) -> None:
        mine = sorted(at for at, holder in self.held.items() if holder == member)
        if not mine:
            return
        at = mine[0]
        item = self.partition._ranges.at(at)
        assert item is not None
        is_last = item.count >= LIMITS.deliveries_max
        said = [Acknowledgement(Offset(at), Offset(at), [kind], delay_ms)]
        count = item.count
        self.keep(self.partition.acknowledge(member, said, LIMITS, self.now_ms, may_renew=False))
        del self.held[at]
        if kind == AcknowledgeType.RELEASE and not is_last:
            delay = LIMITS.retry_delay_ms(count) if delay_ms < 0 else delay_ms
            self.waiting[at] = self.now_ms + delay
        else:
            self.finished.add(at)

    @rule(passed_ms=st.integers(1, 120))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for item in self.partition._ranges.acquired():
            if item.until_ms <= self.now_ms:
                for at in range(item.start, item.end):
                    del self.held[at]
                    if item.count >= LIMITS.deliveries_max:
                        self.finished.add(at)
                    else:
                        self.waiting[at] = self.now_ms + LIMITS.retry_delay_ms(item.count)
        self.keep(self.partition.expire(LIMITS, self.now_ms))

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.keep(self.partition.release_member(member, LIMITS, self.now_ms, counts=False))
        for at in [at for at, holder in self.held.items() if holder == member]:
            del self.held[at]
            self.waiting.pop(at, None)

    @rule(data=st.data())
    def remove_old_records(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, len(self.keys)))
        self.keep(self.partition.note_log_start(self.log_start))
        self.finished |= set(range(self.log_start))
        self.held = {at: m for at, m in self.held.items() if at >= self.log_start}

    @rule(is_switched=st.booleans())
    def crash(self, is_switched: bool) -> None:
        """Or the setting was switched off and on: then what members hold stays theirs."""
        if is_switched:
            self.partition.order_by_key(False)
        else:
            self.partition = SharePartition.restore(StateRead(0, self.kept_start, self.kept))
            self.held.clear()
            kept = {
                at: batch.not_before_ms
                for batch in self.kept
                for at in range(batch.first, batch.last + 1)
            }
            self.waiting = kept
        self.partition.order_by_key(True)

    @invariant()
    def the_window_is_bounded(self) -> None:
        longest = 5
        assert self.partition.unfinished_count < LIMITS.key_window_max + longest
        order = self.partition.order
        assert order is not None
        assert len(order) <= self.partition.unfinished_count


TestKeyOrder = KeyOrderMachine.TestCase
TestKeyOrder.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
