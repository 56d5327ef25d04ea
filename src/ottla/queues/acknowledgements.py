"""Acknowledgements of a member: their types, and the runs of offsets that they change."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import Offset

GROUP_BACKOFF: Final = -1  # a released record waits as long as its group's settings say
RETRY_DELAY_MAX_MS: Final = 24 * 60 * 60_000  # that a member may ask for
REASON_MAX: Final = 200  # characters that are kept of the reason for a reject


class AcknowledgeType(IntEnum):
    """Types of acknowledgements; the numbers are Kafka's."""

    GAP = 0  # there is no record at the offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # keep the record for another lock duration


_TYPES: Final = tuple(AcknowledgeType)  # each at its number
_ACCEPT: Final = int(AcknowledgeType.ACCEPT)
_TYPE_MAX: Final = int(AcknowledgeType.RENEW)


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of adjacent offsets: one type for all, or one for each.

    What is released waits for `delay_ms`; if `is_uncounted`, as if it had not been delivered. What
    is rejected has a `reason`, or none.
    """

    first: Offset
    last: Offset
    types: Sequence[int]
    delay_ms: int = GROUP_BACKOFF
    is_uncounted: bool = False
    reason: str = ""


class Run(NamedTuple):
    """Adjacent offsets with one type of acknowledgement; half-open."""

    start: int
    end: int
    kind: AcknowledgeType
    delay_ms: int
    is_uncounted: bool
    reason: str


def accepted_only(acknowledgements: Sequence[Acknowledgement]) -> tuple[int, int] | None:
    """First and last offset, if all that is said is that these are accepted; None for more."""
    if len(acknowledgements) != 1:
        return None
    first, last, types, delay_ms, _, _ = acknowledgements[0]
    is_plain = len(types) == 1 and types[0] == _ACCEPT and delay_ms == GROUP_BACKOFF
    return (first, last) if is_plain else None


def runs_of(acknowledgements: Sequence[Acknowledgement], start: int, end: int) -> list[Run]:
    """The runs of offsets from `start` on; nothing was acquired from `end` on."""
    runs: list[Run] = []
    before = -1
    for item in acknowledgements:
        first, last, types, delay_ms, is_uncounted, reason = item
        if not before < first <= last:
            raise InvalidRequest("acknowledged offsets must ascend and not overlap")
        before = last
        _check(item, end)
        if len(types) == 1:
            if last >= start:
                run = first if first > start else start
                kind = _TYPES[types[0]]
                said = (run, last + 1, kind, delay_ms, is_uncounted, reason)
                runs.append(tuple.__new__(Run, said))
            continue
        run = max(first, start)
        for at in range(run, last + 1):
            if at == last or types[at + 1 - first] != types[at - first]:
                kind = _TYPES[types[at - first]]
                runs.append(Run(run, at + 1, kind, delay_ms, is_uncounted, reason))
                run = at + 1
    return runs


def _check(item: Acknowledgement, end: int) -> None:
    first, last, types, delay_ms, _, _ = item
    if len(types) == 1:
        lowest = highest = types[0]
    elif types and len(types) == last - first + 1:
        lowest, highest = min(types), max(types)
    else:
        raise InvalidRequest("an acknowledgement has one type, or one for each offset")
    if not 0 <= lowest <= highest <= _TYPE_MAX:
        raise InvalidRequest("0 to 4 are the types of acknowledgements")
    if not GROUP_BACKOFF <= delay_ms <= RETRY_DELAY_MAX_MS:
        raise InvalidRequest(f"a retry delay is 0 to {RETRY_DELAY_MAX_MS} ms, not {delay_ms}")
    if last >= end:
        raise InvalidRequest(f"offset {last} was never acquired")
