"""What waits in a partition, held to a model: never early, never lost, never doubled.

The model is a list of what readers see and a table of what waits. A new leader that reads the same
log knows the same, wherever the log ends.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.waiting_log import WaitingLog, record
from ottla.errors import InvalidRecord
from ottla.model import Offset
from ottla.records.batch import MarkerKind, Record
from ottla.records.compression import Codec
from sizes import examples

# Small segments, so that a log has some, and its start can rise.
SETTINGS = {"segment.bytes": "1500", "index.interval.bytes": "150", "delay.pending.max": "50"}

KINDS = st.sampled_from(["plain", "delay", "at", "past", "zero", "cron"])
DELAYS = st.integers(1, 10_000_000)


@dataclass
class Model:
    """What readers see, and what waits: (due, value) by ticket."""

    seen: list[bytes] = field(default_factory=list)
    waits: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    schedules: dict[int, int] = field(default_factory=dict)  # first ticket, by ticket
    undecided: list[tuple[int, int, bytes]] = field(default_factory=list)

    def release(self, log: WaitingLog, base: int) -> None:
        """Copies are appended in the order of (due, ticket), from offset `base` on."""
        due = sorted((due, ticket) for ticket, (due, _) in self.waits.items() if due <= log.now_ms)
        at = base
        for _, ticket in due:
            value = self.waits.pop(ticket)[1]
            self.seen.append(value)
            at += 1
            if ticket in self.schedules:
                first = self.schedules.pop(ticket)
                self.waits[at] = (log.now_ms // 60_000 * 60_000 + 60_000, value)
                self.schedules[at] = first
                at += 1


class WaitingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.log = WaitingLog(SETTINGS)
        self.model = Model()
        self.number = 0
        self.sequences = {1: 0, 2: 0}

    def drawn(self, kind: str, delay_ms: int) -> tuple[Record, int | None]:
        """A record and when it is due; None for one that is seen at once."""
        self.number += 1
        value = b"%d" % self.number
        now_ms = self.log.now_ms
        if kind == "delay":
            return record(value, b"key", delay_ms=delay_ms), now_ms + delay_ms
        if kind == "at":
            return record(value, deliver_at=now_ms + delay_ms, due=3), now_ms + delay_ms
        if kind == "past":
            return record(value, deliver_at=now_ms - delay_ms % 1000), None
        if kind == "zero":
            return record(value, delay_ms=0), None
        if kind == "cron":
            return record(value, cron="* * * * *"), now_ms // 60_000 * 60_000 + 60_000
        return record(value, ticket=7), None

    def note(self, base: int, drawn: list[tuple[Record, int | None]], *, is_open: bool) -> None:
        for delta, (sent, due_ms) in enumerate(drawn):
            value = sent.value or b""
            if due_ms is None:
                self.model.seen.append(value)
            elif is_open:
                self.model.undecided.append((base + delta, due_ms, value))
            else:
                self.model.waits[base + delta] = (due_ms, value)
            if due_ms is not None and any(name == "ottla.cron" for name, _ in sent.headers):
                self.model.schedules[base + delta] = base + delta

    @rule(
        drawn=st.lists(st.tuples(KINDS, DELAYS), min_size=1, max_size=5),
        codec=st.sampled_from(list(Codec)),
        producer=st.sampled_from([-1, 1]),
    )
    def send(self, drawn: list[tuple[str, int]], codec: Codec, producer: int) -> None:
        if len(self.model.waits) + len(drawn) + len(self.model.undecided) > 50:
            return
        sent = [self.drawn(*one) for one in drawn]
        sequence = self.sequences[1] if producer == 1 else -1
        only = [one for one, _ in sent]
        receipt = self.log.send(only, codec=codec, producer_id=producer, sequence=sequence)
        self.note(receipt.base_offset, sent, is_open=False)
        if producer == 1:
            again = self.log.send(only, codec=codec, producer_id=producer, sequence=sequence)
            assert again.base_offset == receipt.base_offset  # a repeated batch arms nothing again
            self.sequences[1] += len(sent)

    @rule(
        drawn=st.lists(st.tuples(st.sampled_from(["delay", "at"]), DELAYS), min_size=1, max_size=3)
    )
    def send_in_transaction(self, drawn: list[tuple[str, int]]) -> None:
        if len(self.model.waits) + len(drawn) + len(self.model.undecided) > 50:
            return
        sent = [self.drawn(*one) for one in drawn]
        receipt = self.log.send(
            [one for one, _ in sent],
            producer_id=2,
            sequence=self.sequences[2],
            is_transactional=True,
        )
        self.sequences[2] += len(sent)
        self.note(receipt.base_offset, sent, is_open=True)

    @rule(kind=st.sampled_from(MarkerKind))
    def end_transaction(self, kind: MarkerKind) -> None:
        if not self.model.undecided:
            return
        self.log.end(2, kind)
        for ticket, due_ms, value in self.model.undecided:
            if kind is MarkerKind.COMMIT:
                self.model.waits[ticket] = (due_ms, value)
        self.model.undecided.clear()

    @rule(ticket=st.integers(0, 60), pick=st.integers(0, 100), is_first=st.booleans())
    def cancel(self, ticket: int, pick: int, is_first: bool) -> None:
        if self.model.waits and pick < 70:
            ticket = sorted(self.model.waits)[pick % len(self.model.waits)]
        named = self.model.schedules.get(ticket, ticket) if is_first else ticket
        current = next((t for t, first in self.model.schedules.items() if first == named), named)
        if current in self.model.waits:
            self.log.send([record(cancel=named)])
            del self.model.waits[current]
            self.model.schedules.pop(current, None)
        else:
            with pytest.raises(InvalidRecord, match="ticket") as refused:
                self.log.send([record(cancel=named)])
            assert [one.batch_index for one in refused.value.records] == [0]

    @rule(ticket=st.integers(0, 60))
    def cancel_in_a_mixed_batch(self, ticket: int) -> None:
        """A cancel that comes too late does nothing there."""
        current = next((t for t, first in self.model.schedules.items() if first == ticket), ticket)
        self.log.send([record(cancel=ticket), record(b"beside")])
        self.model.seen.append(b"beside")
        self.model.waits.pop(current, None)
        self.model.schedules.pop(current, None)

    @rule(ms=st.integers(1, 4_000_000), portion=st.integers(1, 40))
    def time_passes(self, ms: int, portion: int) -> None:
        self.log.now_ms += ms
        base = self.log.log.end_offset
        self.log.release(portion)
        self.model.release(self.log, base)

    @rule()
    def restart(self) -> None:
        self.log.restart()

    @rule(share=st.floats(0, 1), portion=st.integers(1, 40))
    def delete_old_records(self, share: float, portion: int) -> None:
        """The log's start rises; what waits below is appended again before."""
        log = self.log.log
        below = log.start_offset + int(share * (log.end_offset - log.start_offset))
        if self.model.undecided:
            below = min(below, *(ticket for ticket, _, _ in self.model.undecided))
        self.log.rearm(below, portion)
        kept = self.log.seen(below)
        log.advance_start(Offset(below))
        self.model.seen = [one.value or b"" for one in kept]

    @invariant()
    def it_is_the_model(self) -> None:
        waiting = {one.ticket: one.due_ms for one in self.log.waiting.pending}
        assert waiting == {ticket: due for ticket, (due, _) in self.model.waits.items()}
        assert self.log.waiting.pending.undecided_count == len(self.model.undecided)
        seen = self.log.seen()
        assert [one.value for one in seen] == self.model.seen
        for one in seen:
            assert not any(name in {"ottla.due", "ottla.cancel"} for name, _ in one.headers)

    @invariant()
    def a_new_leader_knows_the_same(self) -> None:
        before = self.log.waiting.pending
        self.log.lead()
        after = self.log.waiting.pending
        assert list(after) == list(before)
        assert after.waiting_bytes == before.waiting_bytes


WaitingMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestWaitingRecords = WaitingMachine.TestCase
