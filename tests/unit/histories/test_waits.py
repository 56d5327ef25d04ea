"""The judge of records that wait finds what must never become of them."""

import pytest

from histories.history import History, Outcome, Released, Scheduled, Transaction, Waits
from histories.waits import judge_waits
from ottla.model import TopicPartition

TP = TopicPartition("reminders", 0)
DUE_MS = 1000


def scheduled(
    value: str = "a",
    outcome: Outcome = Outcome.DONE,
    *,
    due_ms: int = DUE_MS,
    ticket: int | None = 0,
    acked_ms: int | None = None,
    transaction: str | None = None,
) -> Scheduled:
    return Scheduled(value, TP, due_ms, True, outcome, ticket, acked_ms, transaction)


def released(
    value: str = "a", *, offset: int = 9, at_ms: int = DUE_MS, ticket: int | None = 0
) -> Released:
    return Released(TP, offset, value, at_ms, ticket)


def judged(waits: Waits, *transactions: Transaction) -> list[str]:
    history = History(waits=waits, transactions=list(transactions))
    return [problem.partition(":")[0] for problem in judge_waits(history)]


def test_a_record_comes_once_when_it_is_due() -> None:
    assert judged(Waits([scheduled()], released=[released()])) == []
    assert judged(Waits([scheduled()])) == ["never delivered"]
    assert judged(Waits([scheduled(outcome=Outcome.UNKNOWN)])) == []
    twice = [released(), released(offset=10)]
    assert judged(Waits([scheduled()], released=twice)) == ["delivered 2 times"]
    early = [released(at_ms=DUE_MS - 1)]
    assert judged(Waits([scheduled()], released=early)) == ["delivered early"]
    assert judged(Waits(unfinished="3 wait")) == ["unfinished"]


def test_a_record_that_did_not_wait_was_due_when_it_was_acknowledged() -> None:
    found = [released(at_ms=0, ticket=None)]
    assert judged(Waits([scheduled(acked_ms=DUE_MS)], released=found)) == []
    soon = [scheduled(acked_ms=DUE_MS - 1)]
    assert judged(Waits(soon, released=found)) == ["delivered early"]


def test_a_record_comes_as_itself() -> None:
    other = [released(ticket=3)]
    assert judged(Waits([scheduled()], released=other)) == ["delivered with another ticket"]
    moved = [Released(TopicPartition("reminders", 1), 9, "a", DUE_MS, 0)]
    assert judged(Waits([scheduled()], released=moved)) == ["delivered elsewhere"]
    assert judged(Waits(released=[released()])) == ["invented"]


@pytest.mark.parametrize(
    ("cancel", "is_found", "says"),
    [
        (Outcome.DONE, False, []),
        (Outcome.DONE, True, ["delivered, though cancelled"]),
        (Outcome.REFUSED, True, []),
        (Outcome.REFUSED, False, ["never delivered"]),
        (Outcome.UNKNOWN, True, []),
        (Outcome.UNKNOWN, False, []),
    ],
)
def test_a_record_that_is_cancelled_does_not_come(
    cancel: Outcome, is_found: bool, says: list[str]
) -> None:
    found = [released()] if is_found else []
    assert judged(Waits([scheduled()], {"a": cancel}, found)) == says


@pytest.mark.parametrize(
    ("transaction", "is_found", "says"),
    [
        (Transaction("t", True, Outcome.DONE), True, []),
        (Transaction("t", True, Outcome.DONE), False, ["never delivered"]),
        (Transaction("t", True, Outcome.UNKNOWN), False, []),
        (Transaction("t", False, Outcome.UNKNOWN), True, ["delivered, though refused or aborted"]),
        (None, True, ["delivered, though refused or aborted"]),
        (None, False, []),
    ],
)
def test_a_record_of_a_transaction_comes_if_that_is_committed(
    transaction: Transaction | None, is_found: bool, says: list[str]
) -> None:
    found = [released()] if is_found else []
    waits = Waits([scheduled(transaction="t")], released=found)
    assert judged(waits, *([] if transaction is None else [transaction])) == says


def test_records_that_waited_together_come_in_the_order_of_their_due_times() -> None:
    first, second = scheduled("a", ticket=0), scheduled("b", ticket=1, due_ms=DUE_MS + 1)
    later_ms = DUE_MS + 5
    a, b = (
        released("a", offset=2, at_ms=later_ms),
        released("b", offset=3, at_ms=later_ms, ticket=1),
    )
    assert judged(Waits([first, second], released=[a, b])) == []
    a, b = (
        released("a", offset=3, at_ms=later_ms),
        released("b", offset=2, at_ms=later_ms, ticket=1),
    )
    assert judged(Waits([first, second], released=[a, b])) == ["out of order"]
    late = scheduled("a", ticket=7)  # it arrived when the other had been delivered
    a = released("a", offset=8, at_ms=later_ms, ticket=7)
    assert judged(Waits([late, second], released=[a, b])) == []
