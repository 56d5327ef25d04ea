"""States of share partitions: what is kept, who is fenced, what pruning may forget."""

from itertools import count, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.tickets import FakeTicket
from ottla.coordinator.share.records import (
    ShareRecord,
    Snapshot,
    StateDropped,
    Update,
    from_bytes,
    plain_update_bytes,
    to_bytes,
    update_bytes,
)
from ottla.coordinator.share.share_states import (
    UPDATES_PER_SNAPSHOT,
    ShareDecision,
    ShareStates,
)
from ottla.errors import ApiError, ErrorCode
from ottla.model import Offset, ProducerId, TimestampMs, Uuid
from ottla.queues.share_state import (
    NO_START,
    Cause,
    DeliveryState,
    Sender,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateSummary,
    StateWrite,
    combine,
)

TICKET = FakeTicket(1)
KEY = SharePartitionKey("g", Uuid(b"t" * 16), 3)
OTHER = KEY._replace(partition=4)
AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED


def batch(first: int, last: int, state: DeliveryState = AVAILABLE, count: int = 1) -> StateBatch:
    return StateBatch(Offset(first), Offset(last), state, count)


def change(start: int, *batches: StateBatch, complete: int = 0) -> StateWrite:
    return StateWrite(Offset(start), complete, batches)


class Kept:
    """A machine, and the log of its records as bytes."""

    def __init__(self) -> None:
        self.states = ShareStates()
        self.log: list[tuple[bytes, bytes | None]] = []

    def note(self, decision: ShareDecision) -> Any:
        self.log += [to_bytes(record) for record in decision.records]
        ((_, response),) = decision.responses
        return response

    def initialize(self, key: SharePartitionKey, epoch: int, start: int = NO_START) -> Any:
        return self.note(self.states.initialize(TICKET, key, epoch, Offset(start), 1))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Any:
        return self.note(self.states.read(TICKET, key, leader_epoch, 1))

    def write(self, key: SharePartitionKey, epoch: int, leader: int, written: StateWrite) -> Any:
        return self.note(self.states.write(TICKET, key, epoch, leader, written, 1))

    def begin_round(self) -> Any:
        return self.note(self.states.begin_round(TICKET, Offset(len(self.log)), 1))

    def replayed(self, since: int = 0) -> ShareStates:
        """Another machine that has read the log from there on."""
        states = ShareStates()
        for key, value in self.log[since:]:
            record = from_bytes(key, value)
            assert record is not None
            states.replay(record, 1)
        return states


def snapshots(states: ShareStates) -> dict[SharePartitionKey, Snapshot]:
    return {key: kept.snapshot for key, kept in states.states.items()}


def code(response: object) -> ErrorCode:
    assert isinstance(response, ApiError), response
    return response.code


def test_a_state_is_read_as_it_was_written() -> None:
    kept = Kept()
    assert code(kept.read(KEY, 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert kept.initialize(KEY, 1) is None
    assert kept.read(KEY, 5) == StateRead(1, NO_START, ())
    assert kept.write(KEY, 1, 5, change(10, batch(12, 14), complete=2)) is None
    assert kept.write(KEY, 1, 5, change(12, batch(13, 13, ACKNOWLEDGED))) is None
    expected = (batch(12, 12), batch(13, 13, ACKNOWLEDGED), batch(14, 14))
    assert kept.read(KEY, 5) == StateRead(1, Offset(12), expected)
    ((_, summary),) = kept.states.summarize(TICKET, KEY).responses
    assert summary == StateSummary(1, 5, Offset(12), 0)
    assert snapshots(kept.replayed()) == snapshots(kept.states)


def test_a_leader_that_reads_fences_those_before_it() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    kept.read(KEY, 5)
    written = len(kept.log)
    kept.read(KEY, 6)
    assert len(kept.log) == written + 1, "the epoch is in the log before the response"
    assert code(kept.write(KEY, 1, 5, change(0))) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(kept.read(KEY, 5)) is ErrorCode.FENCED_LEADER_EPOCH
    again = Kept()
    again.states = kept.replayed()
    assert code(again.write(KEY, 1, 5, change(0))) is ErrorCode.FENCED_LEADER_EPOCH
    assert again.write(KEY, 1, 6, change(0)) is None


def test_a_member_that_asks_for_a_state_that_is_there_changes_nothing() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    kept.read(KEY, 5)
    kept.write(KEY, 1, 5, change(10, batch(12, 14)))
    found, written = kept.read(KEY, 5), len(kept.log)
    for epoch in (1, 2, 0):
        assert kept.initialize(KEY, epoch) is None
    assert kept.read(KEY, 5) == found
    assert len(kept.log) == written


def test_a_state_that_is_begun_anew_fences_those_who_read_it_before() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    kept.read(KEY, 5)
    kept.write(KEY, 1, 5, change(10, batch(12, 14)))
    assert kept.initialize(KEY, 2, 7) is None
    assert kept.initialize(KEY, 2, 7) is None  # the same call once more changes nothing
    assert code(kept.initialize(KEY, 1, 7)) is ErrorCode.FENCED_STATE_EPOCH
    assert code(kept.write(KEY, 1, 5, change(11))) is ErrorCode.FENCED_STATE_EPOCH
    assert code(kept.write(KEY, 3, 5, change(11))) is ErrorCode.INVALID_REQUEST
    assert kept.read(KEY, 5) == StateRead(2, Offset(7), ())
    assert snapshots(kept.replayed()) == snapshots(kept.states)


def test_a_leader_that_was_fenced_stays_fenced_when_the_state_is_begun_anew() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    kept.read(KEY, 5)
    kept.initialize(KEY, 2, 7)
    for one in (kept.states, kept.replayed()):
        kept.states = one
        assert code(kept.read(KEY, 4)) is ErrorCode.FENCED_LEADER_EPOCH
        assert code(kept.write(KEY, 2, 4, change(8))) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_deleted_state_is_gone_and_a_late_write_does_not_bring_it_back() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    assert kept.note(kept.states.delete(TICKET, KEY, 1)) is None
    assert kept.note(kept.states.delete(TICKET, KEY, 1)) is None
    refused = kept.write(KEY, 1, 0, change(1))
    assert code(refused) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not kept.replayed().states


def test_states_of_deleted_topics_are_dropped() -> None:
    kept = Kept()
    gone = KEY._replace(topic_id=Uuid(b"x" * 16))
    kept.initialize(KEY, 1)
    kept.initialize(gone, 1)
    kept.note(kept.states.drop_topics(TICKET, lambda topic_id: topic_id == gone.topic_id, 1))
    assert list(kept.states.states) == list(kept.replayed().states) == [KEY]


def test_a_snapshot_follows_many_updates() -> None:
    kept = Kept()
    kept.initialize(KEY, 1, 0)
    for offset in range(UPDATES_PER_SNAPSHOT + 1):
        kept.write(KEY, 1, 0, change(offset, batch(offset, offset + 1)))
    last = from_bytes(*kept.log[-1])
    assert isinstance(last, Snapshot)
    assert (last.snapshot_epoch, last.start_offset) == (1, UPDATES_PER_SNAPSHOT)
    assert snapshots(kept.replayed(len(kept.log) - 1)) == snapshots(kept.states)


@given(st.lists(st.sampled_from(["a", "b", "new", "drop", "round"]), max_size=40))
def test_nothing_is_needed_of_what_pruning_cuts_off(steps: list[str]) -> None:
    kept, start = Kept(), 0
    epochs = count(1)
    for step in steps:
        match step:
            case "a" | "b":
                key = KEY if step == "a" else OTHER
                kept.write(key, 10**6, 0, change(len(kept.log), batch(10**6, 10**6)))
                if key in kept.states.states:
                    epoch = kept.states.states[key].snapshot.state_epoch
                    kept.write(key, epoch, 0, change(len(kept.log), batch(10**6, 10**6)))
            case "new":
                kept.initialize(KEY, next(epochs))
                kept.initialize(OTHER, next(epochs))
            case "drop":
                kept.note(kept.states.delete(TICKET, KEY, 1))
            case _:
                start = max(start, kept.begin_round())
        assert snapshots(kept.replayed(start)) == snapshots(kept.states)


def test_an_idle_shard_is_not_written_to() -> None:
    kept = Kept()
    kept.initialize(KEY, 1)
    assert kept.states.is_prunable
    for _ in range(2):
        kept.begin_round()
    assert not kept.states.is_prunable


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from(DeliveryState)),
        max_size=12,
    ),
    st.integers(0, 20),
)
def test_combined_batches_are_what_was_said_last(
    said: list[tuple[int, int, DeliveryState]], start: int
) -> None:
    batches = [batch(first, first + size, state, size) for first, size, state in said]
    model = {at: b[2:] for b in batches for at in range(b.first, b.last + 1) if at >= start}
    found: tuple[StateBatch, ...] = ()
    for one in batches:
        found = combine(found, [one], Offset(0))
    found = combine(found, [], Offset(start))
    assert {at: b[2:] for b in found for at in range(b.first, b.last + 1)} == model
    assert all(a.last < b.first for a, b in pairwise(found))
    assert combine((), batches, Offset(start)) == found


def test_records_survive_being_written() -> None:
    records: list[ShareRecord] = [
        Snapshot(
            key=KEY,
            snapshot_epoch=2,
            state_epoch=3,
            leader_epoch=4,
            start_offset=Offset(5),
            complete_count=6,
            created_ms=TimestampMs(7),
            written_ms=TimestampMs(8),
            batches=(batch(9, 10, ACKNOWLEDGED, 11),),
        ),
        Update(key=KEY, snapshot_epoch=1, leader_epoch=2, start_offset=Offset(3)),
        StateDropped(KEY),
    ]
    for record in records:
        assert from_bytes(*to_bytes(record)) == record


@given(
    st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0)
)
def test_a_plain_update_by_hand_has_the_bytes_of_the_codec(
    snapshot_epoch: int, leader_epoch: int, start: int, count: int
) -> None:
    update = Update(
        key=KEY,
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=Offset(start),
        complete_count=count % 2**31,
    )
    assert plain_update_bytes(update) == update_bytes(update) == to_bytes(update)[1]


def test_the_bytes_of_an_update_are_those_of_kafka() -> None:
    update = Update(
        key=SharePartitionKey("g", Uuid(bytes(15) + b"\x01"), 2),
        snapshot_epoch=1,
        leader_epoch=2,
        start_offset=Offset(3),
        complete_count=4,
        batches=(batch(5, 6, ACKNOWLEDGED, 7),),
    )
    key, value = to_bytes(update)
    assert key.hex() == "0001" + "000167" + "00" * 15 + "01" + "00000002"
    assert value is not None
    assert value.hex() == (
        "0000"  # version
        "00000001"
        "00000002"
        "0000000000000003"
        "02"
        "0000000000000005"
        "0000000000000006"
        "02"
        "0007"
        "00"  # one batch
        "01"
        "00"
        "04"
        "00000004"  # tag 0: the count of finished records
    )


def test_dead_letters_waits_and_leases_are_kept_in_tags() -> None:
    sender = Sender(ProducerId(7), 3, Uuid(b"t" * 16), 2, 99)
    waiting = StateBatch(Offset(5), Offset(6), DeliveryState.AVAILABLE, 2, not_before_ms=1234)
    dead = StateBatch(
        Offset(7),
        Offset(9),
        DeliveryState.ARCHIVING,
        5,
        cause=Cause.DELIVERY_LIMIT,
        is_sending=True,
        reason="why",
    )
    held = StateBatch(Offset(10), Offset(10), DeliveryState.ACQUIRED, 1, member="m")
    for record in (
        Update(
            key=KEY,
            snapshot_epoch=1,
            leader_epoch=2,
            start_offset=Offset(5),
            batches=(waiting, dead, held),
            sender=sender,
        ),
        Snapshot(
            key=KEY,
            state_epoch=1,
            leader_epoch=2,
            start_offset=Offset(5),
            created_ms=TimestampMs(1),
            written_ms=TimestampMs(2),
            batches=(waiting, dead, held),
            sender=sender,
        ),
    ):
        assert from_bytes(*to_bytes(record)) == record


def test_states_with_dead_records_are_known_until_all_are_archived() -> None:
    states = ShareStates()
    states.initialize(TICKET, KEY, 1, Offset(0), 0)
    dead = StateBatch(Offset(0), Offset(1), DeliveryState.ARCHIVING, 5, cause=Cause.REJECTED)
    sender = Sender(ProducerId(7), 0, Uuid(b"t" * 16), 0)
    states.write(TICKET, KEY, 1, 0, StateWrite(Offset(0), 0, (dead,), sender), 0)
    assert states.archiving == [KEY]
    done = dead._replace(state=DeliveryState.ARCHIVED, cause=Cause.NONE)
    states.write(TICKET, KEY, 1, 0, StateWrite(Offset(2), 0, (done,)), 0)
    assert states.archiving == []
    assert states.states[KEY].snapshot.sender == sender, "the next batch goes on with it"
