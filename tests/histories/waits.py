"""Judges what became of records that were sent to be delivered later."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from histories.history import History, Outcome, Released, Scheduled, Transaction, Waits
from histories.recurrences import judge_recurrences


def judge_waits(history: History) -> Iterator[str]:
    """Everything that is wrong with them, a sentence each."""
    waits = history.waits
    if waits is None:
        return
    if waits.unfinished:
        yield f"unfinished: {waits.unfinished}"
    ended = {one.id: one for one in history.transactions}
    found: dict[str, list[Released]] = defaultdict(list)
    for released in waits.released:
        found[released.value].append(released)
    for sent in waits.scheduled:
        outcome = _outcome(sent, ended)
        yield from _delivery(sent, outcome, waits.cancels.get(sent.value), found[sent.value])
    yield from judge_recurrences(waits, found)
    known = {sent.value for sent in waits.scheduled} | {sent.value for sent in waits.recurring}
    for released in waits.released:
        if released.value not in known:
            yield f"invented: {released}"
    yield from _order(waits)


def _outcome(sent: Scheduled, ended: dict[str, Transaction]) -> Outcome:
    """What the client knows: a record of a transaction counts only once that is committed."""
    if sent.transaction is None:
        return sent.outcome
    transaction = ended.get(sent.transaction)
    if transaction is None or not transaction.is_commit:
        return Outcome.REFUSED
    return transaction.outcome if sent.outcome is Outcome.DONE else Outcome.UNKNOWN


def _delivery(
    sent: Scheduled, outcome: Outcome, cancel: Outcome | None, found: list[Released]
) -> Iterator[str]:
    if not found:
        if outcome is Outcome.DONE and cancel in {None, Outcome.REFUSED}:
            yield f"never delivered: {sent}"
        return
    if len(found) > 1:
        yield f"delivered {len(found)} times: {sent} as {found}"
    if outcome is Outcome.REFUSED:
        yield f"delivered, though refused or aborted: {sent} as {found}"
    if cancel is Outcome.DONE:
        yield f"delivered, though cancelled: {sent} as {found}"
    for one in found:
        if problem := _difference(sent, one):
            yield f"delivered {problem}: {sent} as {one}"


def _difference(sent: Scheduled, found: Released) -> str:
    """What is wrong with a record that was delivered; nothing if nothing is."""
    if found.tp != sent.tp:
        return "elsewhere"
    if found.ticket is None:
        # It did not wait, so it was due when it arrived; its time is that of its producer.
        is_early = sent.acked_ms is not None and sent.acked_ms < sent.due_ms
        return "early" if is_early else ""
    if found.at_ms < sent.due_ms:
        return "early"
    return "" if sent.ticket in {None, found.ticket} else "with another ticket"


def _order(waits: Waits) -> Iterator[str]:
    """Of two records that waited at the same time, the one that is due first comes first."""
    due_ms = {sent.value: sent.due_ms for sent in waits.scheduled if sent.is_exact}
    copies = [one for one in waits.released if one.ticket is not None and one.value in due_ms]
    in_order = sorted(copies, key=lambda one: (one.tp, one.offset))
    for _, of_partition in groupby(in_order, key=lambda one: one.tp):
        yield from _partition_order(list(of_partition), due_ms)


def _partition_order(copies: list[Released], due_ms: dict[str, int]) -> Iterator[str]:
    """What was delivered while a record waited was due before it."""
    for at, one in enumerate(copies):
        assert one.ticket is not None
        for other in reversed(copies[:at]):
            if other.offset < one.ticket:
                break
            assert other.ticket is not None
            if (due_ms[other.value], other.ticket) > (due_ms[one.value], one.ticket):
                yield f"out of order: {other} before {one}"
                break
