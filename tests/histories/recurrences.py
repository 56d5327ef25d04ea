"""Judges what became of records that come again and again: early, lost, doubled, not cancelled."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from histories.history import Outcome, Recurring, Released, Removal, Waits
from ottla.model import TopicPartition

# A partition that acknowledges records for so long, one soon after the other, has a leader that
# would have released what was due: it tries again a second after a failure.
SERVED_MS: Final = 2500
_PAUSE_MS_MAX: Final = 500


def judge_recurrences(waits: Waits, found: Mapping[str, Sequence[Released]]) -> Iterator[str]:
    """Everything that is wrong with them, a sentence each; `found` is what came, by value."""
    acked = defaultdict[TopicPartition, list[int]](list)
    for sent in waits.scheduled:
        if sent.acked_ms is not None:
            acked[sent.tp].append(sent.acked_ms)
    for times in acked.values():
        times.sort()
    for one in waits.recurring:
        copies = sorted(found.get(one.value, ()), key=lambda copy: copy.offset)
        removal = waits.removals.get(one.value)
        yield from _deliveries(one, copies)
        yield from _after_the_end(one, copies, removal, waits.ended_ms)
        yield from _losses(one, copies, _end_ms(removal, waits.end_ms), acked[one.tp])


def _deliveries(sent: Recurring, copies: Sequence[Released]) -> Iterator[str]:
    """Each is another occurrence of this record, and some time was due since the one before."""
    if copies and sent.outcome is Outcome.REFUSED:
        yield f"came again, though refused: {_short(sent)} as {copies[0]}"
    last_ms, tickets = sent.sent_ms, set[int | None]()
    for copy in copies:
        if copy.ticket in tickets:
            yield f"occurrence delivered twice: {_short(sent)} as {copy}"
        elif copy.at_ms < _next_ms(sent, last_ms):
            yield f"occurrence early: {_short(sent)} as {copy}, the last came at {last_ms}"
        if copy.tp != sent.tp or copy.schedule is None or sent.ticket not in {None, copy.schedule}:
            yield f"occurrence of something else: {_short(sent)} as {copy}"
        tickets.add(copy.ticket)
        last_ms = max(last_ms, copy.at_ms)


def _after_the_end(
    sent: Recurring, copies: Sequence[Released], removal: Removal | None, ended_ms: int | None
) -> Iterator[str]:
    """An acknowledged cancellation is the end, and so is that of everything."""
    removed_at: float = math.inf
    if removal is not None and removal.outcome is Outcome.DONE and removal.offset is not None:
        removed_at = removal.offset
    for copy in copies:
        if copy.offset > removed_at:
            yield f"came again, though cancelled: {_short(sent)} by {removal} as {copy}"
        elif ended_ms is not None and copy.at_ms > ended_ms:
            yield f"came again, though all were cancelled by {ended_ms}: {_short(sent)} as {copy}"


def _losses(
    sent: Recurring, copies: Sequence[Released], end_ms: float, acked_ms: Sequence[int]
) -> Iterator[str]:
    """A time passes without an occurrence only while the partition is not served.

    What was missed then comes once, and the next one is due after that.
    """
    times: list[float] = [copy.at_ms for copy in copies]
    if sent.acked_ms is not None:
        times.insert(0, sent.acked_ms)
    for last_ms, at_ms in pairwise([*times, end_ms]):
        due_ms = _next_ms(sent, last_ms)
        served_ms = _served_ms(acked_ms, due_ms)
        if served_ms < at_ms:
            yield (
                f"occurrence lost: {_short(sent)} was due at {due_ms}, and had not come at"
                f" {served_ms}, when its partition had been served for {SERVED_MS} ms"
            )


def _served_ms(acked_ms: Sequence[int], from_ms: float) -> float:
    """When a partition has acknowledged records for long enough, from a time on."""
    later = acked_ms[bisect_left(acked_ms, from_ms) :]
    begun_ms = last_ms = later[0] if later else math.inf
    for at_ms in later:
        if at_ms - last_ms > _PAUSE_MS_MAX:
            begun_ms = at_ms
        if at_ms - begun_ms >= SERVED_MS:
            return at_ms
        last_ms = at_ms
    return math.inf


def _end_ms(removal: Removal | None, end_ms: int | None) -> float:
    """Until when occurrences must come: a cancellation may work from when it is sent."""
    ends = [math.inf if end_ms is None else end_ms]
    if removal is not None and removal.outcome is not Outcome.REFUSED:
        ends.append(removal.begun_ms)
    return min(ends)


def _next_ms(sent: Recurring, after_ms: float) -> float:
    at = bisect_right(sent.due_ms, after_ms)
    return sent.due_ms[at] if at < len(sent.due_ms) else math.inf


def _short(sent: Recurring) -> str:
    return f"{sent.value} of {sent.tp}, ticket {sent.ticket}"
