"""The checker finds each kind of anomaly, and nothing in a history without one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from histories.checker import judge
from histories.history import (
    Committed,
    Fault,
    History,
    Isolation,
    Outcome,
    Read,
    Seen,
    Sent,
    Transaction,
    Written,
)
from ottla.model import TopicPartition

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)

Breaks = Callable[[History], None]


def sent(number: int, outcome: Outcome = Outcome.DONE, offset: int | None = None) -> Sent:
    return Sent("p", TP, number, outcome, offset)


def good() -> History:
    """Three records, a transaction over two partitions, a reader and a commit."""
    return History(
        sent=[
            sent(1, offset=0),
            sent(2, Outcome.UNKNOWN),
            sent(3, offset=2),
            Sent("q", TP, 1, Outcome.DONE, transaction="one"),
            Sent("q", OTHER, 2, Outcome.DONE, transaction="one"),
            Sent("q", TP, 3, Outcome.DONE, transaction="two"),
        ],
        transactions=[
            Transaction("one", is_commit=True, outcome=Outcome.DONE),
            Transaction("two", is_commit=False, outcome=Outcome.DONE),
        ],
        commits=[
            Committed("g", TP, 2, Outcome.DONE),
            Committed("g", TP, 3, Outcome.DONE),
        ],
        reads=[
            Read("r", TP, ((0, "p#1"), (1, "p#2"))),
            Read("r", TP, ((2, "p#3"),)),
        ],
        final={
            TP: [(0, "p#1"), (1, "p#2"), (2, "p#3"), (3, "q#1"), (5, "q#3")],
            OTHER: [(0, "q#2")],
        },
        final_committed={
            TP: [(0, "p#1"), (1, "p#2"), (2, "p#3"), (3, "q#1")],
            OTHER: [(0, "q#2")],
        },
        final_offsets={("g", TP): 3},
    )


def test_a_history_without_anomalies_is_good() -> None:
    assert judge(good()) == []


def test_a_record_whose_outcome_is_unknown_may_be_missing() -> None:
    history = good()
    history.final[TP].remove((1, "p#2"))
    history.final_committed[TP].remove((1, "p#2"))
    history.reads[0] = Read("r", TP, ((0, "p#1"),))
    assert judge(history) == []


def break_final(history: History, old: tuple[int, str], *new: tuple[int, str]) -> None:
    for logs in (history.final, history.final_committed):
        at = logs[TP].index(old)
        logs[TP][at : at + 1] = new


def lose(history: History) -> None:
    break_final(history, (2, "p#3"))
    history.reads.pop()


def move(history: History) -> None:
    history.sent[0] = sent(1, offset=7)


def write_refused(history: History) -> None:
    history.sent[1] = sent(2, Outcome.REFUSED)


def double(history: History) -> None:
    break_final(history, (3, "q#1"), (3, "q#1"), (4, "p#3"))


def invent(history: History) -> None:
    break_final(history, (3, "q#1"), (3, "q#1"), (4, "x#1"))


def reorder(history: History) -> None:
    history.sent = [replace(one, offset=None) for one in history.sent]
    history.final[TP][:3] = [(0, "p#1"), (1, "p#3"), (2, "p#2")]
    history.final_committed[TP][:3] = history.final[TP][:3]
    history.reads.clear()


def repeat_offset(history: History) -> None:
    break_final(history, (3, "q#1"), (2, "q#1"))


def read_otherwise(history: History) -> None:
    history.reads[0] = Read("r", TP, ((0, "p#1"), (1, "q#9")))


def read_twice(history: History) -> None:
    history.reads.append(Read("r", TP, ((2, "p#3"),)))


def skip(history: History) -> None:
    history.reads = [Read("r", TP, ((0, "p#1"),)), Read("r", TP, ((2, "p#3"),))]


def skip_within(history: History) -> None:
    history.reads = [Read("r", TP, ((0, "p#1"), (2, "p#3")))]


def hide_committed(history: History) -> None:
    history.final_committed[OTHER].clear()


def show_aborted(history: History) -> None:
    history.final_committed[TP].append((5, "q#3"))


def tear(history: History) -> None:
    history.transactions[0] = Transaction("one", is_commit=True, outcome=Outcome.UNKNOWN)
    history.final_committed[OTHER].clear()


def show_unended(history: History) -> None:
    history.transactions.pop(0)


def lose_commit(history: History) -> None:
    history.final_offsets["g", TP] = None


def turn_back_commit(history: History) -> None:
    history.final_offsets["g", TP] = 2


def stop_serving(history: History) -> None:
    history.unavailable.append(TP)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lose, "lost: p#3 of t-0, acknowledged at offset 2"),
        (move, "moved: p#1 of t-0, acknowledged at 7, is at [0]"),
        (write_refused, "refused and written: p#2 of t-0 at [1]"),
        (double, "doubled: p#3 of t-0 at [2, 4]"),
        (invent, "invented: 'x#1' of t-0 at 4"),
        (reorder, "reordered: p#2 of t-0 at 2, behind p#3"),
        (repeat_offset, "offsets of t-0 go from 2 to 2"),
        (read_otherwise, "r read q#9 of t-0 at 1, where in the end is p#2"),
        (read_twice, "r read t-0 at [2] behind 2"),
        (skip, "r skipped p#2 of t-0 at 1"),
        (skip_within, "r skipped p#2 of t-0 at 1"),
        (hide_committed, "committed and not visible: q#2 of t-1"),
        (show_aborted, "aborted and visible: q#3 of t-0"),
        (tear, "torn: 1 of 2 records of one are visible"),
        (show_unended, "never ended and visible: q#1 of t-0"),
        (lose_commit, "lost: the offset 3 of group g in t-0"),
        (turn_back_commit, "offset 2 of group g in t-0 is none of [3]"),
        (stop_serving, "t-0 does not acknowledge after all faults are over"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_an_anomaly_is_found_and_named(breaks: Breaks, says: str) -> None:
    history = good()
    breaks(history)
    assert says in judge(history)


@pytest.mark.parametrize(
    ("offset", "begun_s", "is_outdated"),
    [
        (3, 9.0, False),
        (1, 9.0, True),
        (None, 9.0, True),
        (2, 9.0, False),  # nobody knows when it was applied
        (1, 2.5, False),  # it was asked before the third was there
        (None, 0.5, False),
    ],
)
def test_an_offset_that_was_replaced_before_it_was_asked_for_is_outdated(
    offset: int | None, begun_s: float, is_outdated: bool
) -> None:
    history = good()
    history.written += [Written("g", 1, 1.0), Written("g", 2, None), Written("g", 3, 3.0)]
    history.seen.append(Seen("g", offset, begun_s))
    found = judge(history)
    assert [one.split(":")[0] for one in found] == ["outdated"] * is_outdated


def timed(*ended_s: float) -> History:
    """Records that were acknowledged at these times, by broker 1, each after half a second."""
    history = History(calm_gap_s_max=5.0)
    for number, end_s in enumerate(ended_s):
        history.sent.append(
            Sent("p", TP, number, Outcome.DONE, number, None, end_s - 0.5, end_s, broker=1)
        )
    history.final[TP] = history.final_committed[TP] = [
        (number, f"p#{number}") for number in range(len(ended_s))
    ]
    return history


def test_a_gap_may_be_as_long_as_the_fault_allows_that_it_belongs_to() -> None:
    history = timed(1.0, 5.0, 13.0, 14.0)
    assert judge(history) == [
        "silent: t-0 acknowledged nothing for 8.0 s from 5.0 s on, 5 s at most"
    ]
    history.faults.append(Fault("kill", 4.0, 6.0, gap_s_max=10.0))
    assert judge(history) == []
    history.faults[0] = Fault("kill", 4.0, 6.0, gap_s_max=7.0)
    assert [one.split(",")[1] for one in judge(history)] == [" 7 s at most"]
    history.faults.append(Fault("cut", 6.0, 9.0, gap_s_max=10.0))
    assert judge(history) == [], "most of it belongs to the cut"
    history.faults.append(Fault("kill", 9.0, 20.0, gap_s_max=7.5))
    assert [one.split(",")[1] for one in judge(history)] == [" 7.5 s at most"]
    history.faults[:] = [Fault("kill", 13.0, 20.0, gap_s_max=10.0)]
    assert [one.split(",")[1] for one in judge(history)] == [" 5 s at most"]
    history.calm_gap_s_max = None
    assert judge(history) == []


@pytest.mark.parametrize(
    ("broker", "begun_s", "ended_s", "is_found"),
    [
        (1, 1.0, 9.0, True),
        (2, 1.0, 9.0, False),
        (1, 1.6, 9.0, False),  # it was sent before, and may have been replicated
        (1, 1.0, 1.9, False),  # it was acknowledged afterwards
    ],
)
def test_an_isolated_leader_acknowledges_nothing_that_was_sent_to_it_since(
    broker: int, begun_s: float, ended_s: float, is_found: bool
) -> None:
    history = timed(2.0)
    history.isolations.append(Isolation(broker, begun_s, ended_s))
    says = "acknowledged by an isolated leader: p#0 of t-0 by broker 1"
    assert judge(history) == [says] * is_found


def test_groups_may_read_a_share_of_the_records_again() -> None:
    history = timed(1.0, 2.0, 3.0, 4.0)
    records = tuple(history.final[TP])
    history.reads = [
        Read("one", TP, records, group="g"),
        Read("two", TP, records[3:], group="g"),
        Read("three", TP, records, group="h"),
    ]
    history.redelivered_max = 0.12
    assert judge(history) == []
    history.redelivered_max = 0.1
    assert judge(history) == ["redelivered: 11.11% of the records, 10.00% at most"]
