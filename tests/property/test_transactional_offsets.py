"""Offsets in transactions against a model, with a crash after every single record.

The model knows only the log: a list of what was written, where an offset said in a transaction
counts if that transaction's marker says so, and the last word that counts is the truth.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.tickets import FakeTicket
from ottla.coordinator.groups.classic_protocol import GroupLimits
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit, UnstableOffset
from ottla.coordinator.groups.records import (
    GroupDropped,
    OffsetCommitted,
    OffsetDropped,
    OffsetPending,
    Record,
    read_entry,
    to_bytes,
)
from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, ProducerEpoch, ProducerId, TopicPartition
from sizes import examples

GROUPS: Final = ("g", "h")
PARTITIONS: Final = (TopicPartition("t", 0), TopicPartition("u", 0))
PRODUCERS: Final = tuple(ProducerIdentity(ProducerId(n), ProducerEpoch(0)) for n in range(2))
ALONE: Final = Committer(member_id="", instance_id=None, generation=-1, version=3)

LogItem = tuple[str, TopicPartition, int | None, ProducerIdentity | None] | TransactionEnded


class Kind(Enum):
    COMMIT = auto()
    PEND = auto()
    END = auto()
    FORGET = auto()
    DELETE = auto()
    DROP_TOPIC = auto()


class Step(NamedTuple):
    """An event; each kind uses what it needs."""

    kind: Kind
    group_id: str
    tps: list[TopicPartition]
    at: int
    producer: ProducerIdentity
    is_committed: bool


# Few names and long scripts, so that words about the same partition meet.
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([*Kind, *[Kind.PEND] * 6, *[Kind.END] * 4]),
        st.sampled_from(GROUPS),
        st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2),
        st.integers(0, 99),
        st.sampled_from(PRODUCERS),
        st.booleans(),
    ),
    min_size=12,
    max_size=30,
)


@settings(max_examples=examples(80))
@given(steps)
def test_offsets_are_what_the_log_says_wherever_it_ends(script: list[Step]) -> None:
    groups = new_groups()
    log: list[Entry | TransactionEnded] = []
    model: list[LogItem] = []
    for step in script:
        for item in carry_out(groups, step):
            log.append(stored(item))
            model.append(modelled(item))
            check(reloaded(log), model)  # a broker that stops here and reads its log again
        check(groups, model)


def new_groups() -> Groups:
    return Groups(lambda: GroupLimits(initial_delay_ms=0), lambda: "id")


def carry_out(groups: Groups, step: Step) -> list[Record | TransactionEnded]:
    """One event; what it wrote to the log, without groups that come and go."""
    commits = words(step.tps, step.at)
    match step.kind:
        case Kind.COMMIT:
            decision = groups.commit(FakeTicket(1), step.group_id, ALONE, commits, 0)
        case Kind.PEND:
            decision = groups.commit_in_transaction(
                FakeTicket(1), step.group_id, step.producer, ALONE, commits, 0
            )
        case Kind.END:
            ended = TransactionEnded(step.producer, step.is_committed)
            groups.replay(ended, 0)
            return [ended]
        case Kind.FORGET:
            decision = groups.delete_offsets(FakeTicket(1), step.group_id, step.tps, 0)
        case Kind.DELETE:
            decision = groups.delete(FakeTicket(1), step.group_id, 0)
        case _:
            assert step.kind is Kind.DROP_TOPIC
            topic = step.tps[0].topic
            decision = groups.drop_partitions(FakeTicket(1), lambda tp: tp.topic == topic, 0)
    return [record for record in decision.records if not isinstance(record, GroupDropped)]


def words(tps: list[TopicPartition], at: int) -> list[Commit]:
    return [Commit(tp, Offset(at + place), NO_EPOCH, "") for place, tp in enumerate(tps)]


def stored(item: Record | TransactionEnded) -> Entry | TransactionEnded:
    if isinstance(item, TransactionEnded):
        return item
    producer = item.producer if isinstance(item, OffsetPending) else None
    return Entry(*to_bytes(item), producer)


def modelled(item: Record | TransactionEnded) -> LogItem:
    match item:
        case OffsetCommitted():
            return item.group_id, item.tp, item.offset, None
        case OffsetPending(producer, offset):
            return offset.group_id, offset.tp, offset.offset, producer
        case OffsetDropped(group_id, tp):
            return group_id, tp, None, None
        case TransactionEnded():
            return item
        case _:
            raise AssertionError(item)


def reloaded(log: list[Entry | TransactionEnded]) -> Groups:
    groups = new_groups()
    for entry in log:
        record = read_entry(entry)
        assert record is not None
        groups.replay(record, 0)
    groups.end_load()
    return groups


def check(groups: Groups, log: list[LogItem]) -> None:
    for group_id in GROUPS:
        for tp in PARTITIONS:
            at, is_open = truth(log, group_id, tp)
            found = groups.offsets.fetch(group_id, tp)
            assert not isinstance(found, UnstableOffset)
            assert (None if found is None else found.offset) == at
            stable = groups.offsets.fetch(group_id, tp, is_stable=True)
            assert isinstance(stable, UnstableOffset) == is_open
            if at is not None or is_open:
                assert group_id in groups.groups


def truth(log: list[LogItem], group_id: str, tp: TopicPartition) -> tuple[int | None, bool]:
    """The last word that counts, and whether a later one is still open."""
    is_open = False
    for place in reversed(range(len(log))):
        item = log[place]
        if isinstance(item, TransactionEnded) or item[:2] != (group_id, tp):
            continue
        _, _, at, producer = item
        decided = True if producer is None else fate(log[place:], producer)
        if decided is True:
            return at, is_open
        is_open = is_open or decided is None
    return None, is_open


def fate(log: list[LogItem], producer: ProducerIdentity) -> bool | None:
    """What the next marker of this producer says."""
    for item in log:
        if isinstance(item, TransactionEnded) and item.producer == producer:
            return item.is_committed
    return None


def test_a_commit_that_is_refused_leaves_nothing_pending() -> None:
    groups = new_groups()
    stranger = Committer(member_id="m", instance_id=None, generation=3, version=3)
    decision = groups.commit_in_transaction(
        FakeTicket(1), "g", PRODUCERS[0], stranger, words([PARTITIONS[0]], 1), 0
    )
    assert decision.records == ()
    assert decision.responses == (FakeTicket(1).respond([ErrorCode.ILLEGAL_GENERATION]),)
    assert not groups.offsets.groups_pending
