"""Settlements: how a consumer says what became of a message."""

from typing import Final, NamedTuple

from ottla.client.share_records import AcknowledgeKind

_DELAY_MAX_S: Final = 24 * 3600


class Settlement(NamedTuple):
    """The end of a lease, for its message."""

    kind: AcknowledgeKind
    delay_ms: int | None = None  # before it is delivered again; None for the group's backoff
    counts: bool = True  # else as if it had not been delivered
    reason: str = ""  # for rejecting it


DONE: Final = Settlement(AcknowledgeKind.ACCEPT)


def given_back(delay_s: float | None = None, *, counts: bool = True) -> Settlement:
    """A message that is to be delivered again, after so many seconds."""
    if delay_s is None:
        return Settlement(AcknowledgeKind.RELEASE, counts=counts)
    if not 0 <= delay_s <= _DELAY_MAX_S:
        raise ValueError(f"delay: 0 to {_DELAY_MAX_S} seconds, not {delay_s}")
    return Settlement(AcknowledgeKind.RELEASE, int(delay_s * 1000), counts)


def rejected(reason: str) -> Settlement:
    """A message that is not delivered again."""
    return Settlement(AcknowledgeKind.REJECT, reason=reason)
