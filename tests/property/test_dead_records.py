"""Every dead record gets one dead letter, whatever is lost or repeated on the way.

The destination is a log's table of idempotent producers. Each step may be the last one before a
crash: its write is lost, or it is kept and the response is. Leaders that were replaced repeat
what they have sent, at any time.
"""

from collections import Counter
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.errors import ApiError
from ottla.model import NO_UUID, Offset, ProducerEpoch, ProducerId, TimestampMs
from ottla.model import Sequence as SequenceNumber
from ottla.queues.acknowledgements import Acknowledgement, AcknowledgeType
from ottla.queues.share_limits import ShareLimits
from ottla.queues.share_partition import SharePartition, Stretch
from ottla.queues.share_state import Sender, StateBatch, StateRead, StateWrite, combine
from ottla.records.batch import Record, build_batch, read_header
from ottla.storage.producers import Producers
from sizes import examples

LIMITS = ShareLimits(deliveries_max=2, has_dead_letters=True)
REJECT, RELEASE = AcknowledgeType.REJECT, AcknowledgeType.RELEASE
is_kept = st.sampled_from([True, True, False])


class Destination:
    """A partition of the dead-letter topic."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.offsets = Counter[int]()  # of the records whose dead letters are here
        self.end = 0

    def append(self, sender: Sender, offsets: list[int]) -> None:
        batch = build_batch(
            [Record(value=b"%d" % at) for at in offsets],
            producer_id=sender.producer_id,
            producer_epoch=ProducerEpoch(0),
            base_sequence=SequenceNumber(sender.sequence),
        )
        header = read_header(batch)
        if self.producers.check(header) is None:
            self.producers.note(header, Offset(self.end), TimestampMs(0))
            self.offsets.update(offsets)
            self.end += len(offsets)


class DeadRecordsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kept: tuple[StateBatch, ...] = ()
        self.kept_start = Offset(0)
        self.kept_sender: Sender | None = None
        self.partition = SharePartition.restore(StateRead(0, Offset(0), ()))
        self.destinations = [Destination(), Destination()]
        self.target = 0
        self.sent: list[tuple[Sender, list[int]]] = []
        self.dead: set[int] = set()  # what was written
        self.producer_ids = 0
        self.log_end = 0

    def keep(self, written: StateWrite | None) -> None:
        if written is not None:
            self.kept = combine(self.kept, written.batches, written.start_offset)
            self.kept_start = written.start_offset
            self.kept_sender = written.sender or self.kept_sender

    def crash(self) -> None:
        read = StateRead(0, self.kept_start, self.kept, self.kept_sender)
        self.partition = SharePartition.restore(read)

    @rule(size=st.integers(1, 6), kind=st.sampled_from([REJECT, RELEASE]), kept=is_kept)
    def fail(self, size: int, kind: AcknowledgeType, kept: bool) -> None:
        """Records are delivered and rejected, or released; those released twice are dead, too."""
        self.log_end += size
        start = self.partition.next_offset(0)
        if start >= self.log_end:
            return
        found = [Stretch(Offset(start), Offset(self.log_end), True)]
        acquired = self.partition.acquire("m", found, LIMITS, 100, 0)
        assert acquired
        said = [Acknowledgement(a.first, a.last, [kind]) for a in acquired]
        written = self.partition.acknowledge("m", said, LIMITS, 0, may_renew=False)
        if not kept:
            self.crash()
            return
        self.keep(written)
        for one in acquired:
            if kind is REJECT or one.deliveries == LIMITS.deliveries_max:
                self.dead |= set(range(one.first, one.last + 1))

    @precondition(lambda self: self.partition.dead.count and not self.partition.dead.is_sending)
    @rule(size=st.integers(1, 4), kept=is_kept)
    def begin(self, size: int, kept: bool) -> None:
        dead = self.partition.dead
        sender = dead.sender
        if sender is None or sender.partition != self.target:
            self.producer_ids += 1
            sender = Sender(ProducerId(self.producer_ids), 0, NO_UUID, self.target)
        dead.begin([record.offset for record in dead.next(size)], sender)
        if not kept:
            self.partition.take_write()
            self.crash()
            return
        self.keep(self.partition.take_write())

    @precondition(lambda self: self.partition.dead.is_sending)
    @rule(arrives=st.booleans(), kept=is_kept)
    def send(self, arrives: bool, kept: bool) -> None:
        dead = self.partition.dead
        assert dead.sender is not None
        offsets = [int(record.offset) for record in dead.sending()]
        if arrives:
            self.destinations[dead.sender.partition].append(dead.sender, offsets)
        self.sent.append((dead.sender, offsets))
        if not arrives:
            self.crash()
            return
        assert dead.end() == len(offsets)
        written = self.partition.take_write()
        if not kept:
            self.crash()
            return
        self.keep(written)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat_by_an_old_leader(self, data: st.DataObject) -> None:
        sender, offsets = data.draw(st.sampled_from(self.sent[-8:]))
        with suppress(ApiError):  # out of order: older than what the destination remembers
            self.destinations[sender.partition].append(sender, offsets)

    @precondition(lambda self: not self.partition.dead.is_sending)
    @rule()
    def change_destination(self) -> None:
        self.target = 1 - self.target

    @rule()
    def lose_everything_in_memory(self) -> None:
        self.crash()

    @invariant()
    def none_is_doubled(self) -> None:
        counts = self.destinations[0].offsets + self.destinations[1].offsets
        assert all(count == 1 for count in counts.values()), counts
        assert counts.keys() <= self.dead

    @invariant()
    def those_in_memory_are_those_written(self) -> None:
        read = StateRead(0, self.kept_start, self.kept, self.kept_sender)
        restored = SharePartition.restore(read)
        assert restored.dead.sender == self.partition.dead.sender
        assert restored.dead.sending() == self.partition.dead.sending()
        assert restored.dead.next(1000) == self.partition.dead.next(1000)

    def teardown(self) -> None:
        while self.partition.dead.count:
            if not self.partition.dead.is_sending:
                self.begin(3, True)
            self.send(True, True)
        counts = self.destinations[0].offsets + self.destinations[1].offsets
        assert counts == Counter(self.dead), "every dead record has its dead letter"


TestDeadRecords = DeadRecordsMachine.TestCase
TestDeadRecords.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
