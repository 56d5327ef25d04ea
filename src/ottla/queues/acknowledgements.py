"""Acknowledgements of a member: their types, and the runs of offsets that they change."""

from collections.abc import Iterator, Sequence
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


def runs_of(acknowledgements: Sequence[Acknowledgement], start: int, end: int) -> Iterator[Run]:
    """The runs of offsets from `start` on; nothing was acquired from `end` on."""
    before = -1
    for item in acknowledgements:
        first, last, types, delay_ms, is_uncounted, reason = item
        if not before < first <= last:
            raise InvalidRequest("acknowledged offsets must ascend and not overlap")
        before = last
        _check(item, end)
        if len(types) == 1:
            if last >= start:
                kind = AcknowledgeType(types[0])
                yield Run(max(first, start), last + 1, kind, delay_ms, is_uncounted, reason)
            continue
        run = max(first, start)
        for at in range(run, last + 1):
            if at == last or types[at + 1 - first] != types[at - first]:
                kind = AcknowledgeType(types[at - first])
                yield Run(run, at + 1, kind, delay_ms, is_uncounted, reason)
                run = at + 1


def _check(item: Acknowledgement, end: int) -> None:
    first, last, types, delay_ms = item[:4]
    if not types or len(types) not in {1, last - first + 1}:
        raise InvalidRequest("an acknowledgement has one type, or one for each offset")
    if min(types) < 0 or max(types) > _TYPE_MAX:
        raise InvalidRequest("0 to 4 are the types of acknowledgements")
    if not GROUP_BACKOFF <= delay_ms <= RETRY_DELAY_MAX_MS:
        raise InvalidRequest(f"a retry delay is 0 to {RETRY_DELAY_MAX_MS} ms, not {delay_ms}")
    if last >= end:
        raise InvalidRequest(f"offset {last} was never acquired")
