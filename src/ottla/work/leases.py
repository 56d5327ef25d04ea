"""Leases of messages: which are to be renewed, and which have lost all who could settle them.

A lease lasts for the group's lock duration. It is renewed each time a third of that has passed, for
as long as someone wants the message, and not beyond `lease_max_s`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ottla.client.share_records import ShareRecord
from ottla.work.errors import AlreadySettled, LeaseLost

LOOK_S: Final = 1.0  # how often it is looked whether messages are still wanted
_RENEW_SHARE: Final = 2 / 3  # of the lock duration that is left when a lease is renewed
_RETRY_S: Final = 0.5  # after a renewal that had no response


class LeaseState(Enum):
    """The state of a message, as its consumer knows it."""

    HELD = "held"
    SETTLING = "being settled"
    SETTLED = "settled"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Lease:
    """A message that this consumer holds."""

    record: ShareRecord
    begun_s: float
    lock_s: float
    is_wanted: Callable[[], bool]  # False when its handler is gone
    state: LeaseState = LeaseState.HELD
    is_unsure: bool = False  # a request that settles it may have had an effect
    tried_s: float = field(default=-LOOK_S, kw_only=True)  # when it was last to be renewed

    @property
    def name(self) -> str:
        return f"{self.record.tp}@{self.record.offset}"

    def begin_settling(self) -> None:
        match self.state:
            case LeaseState.HELD:
                self.state = LeaseState.SETTLING
            case LeaseState.LOST:
                raise LeaseLost(f"{self.name}: its lease has ended; it is delivered again")
            case LeaseState.SETTLED | LeaseState.SETTLING:
                raise AlreadySettled(
                    f"{self.name}: it was acknowledged, given back or rejected before"
                )


class Leases:
    """The leases of a consumer; times are those of its event loop."""

    def __init__(self, lease_max_s: float) -> None:
        self._lease_max_s = lease_max_s
        self._leases: dict[Lease, None] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease) -> None:
        self._leases[lease] = None

    def remove(self, lease: Lease) -> None:
        self._leases.pop(lease, None)

    def due(self, now_s: float) -> list[Lease]:
        """Leases to renew now."""
        found = [lease for lease in self._leases if self._due_s(lease) <= now_s]
        for lease in found:
            lease.tried_s = now_s
        return found

    def pause_s(self, now_s: float) -> float:
        """How long nothing is to be done."""
        first_s = min(map(self._due_s, self._leases), default=now_s + LOOK_S)
        return min(max(first_s - now_s, 0.0), LOOK_S)

    def unwanted(self) -> list[Lease]:
        """Leases whose handlers are gone."""
        return [
            lease
            for lease in self._leases
            if lease.state is LeaseState.HELD and not lease.is_wanted()
        ]

    def take_overdue(self, now_s: float) -> list[Lease]:
        """Leases that have been held for the longest time allowed: they are not renewed again."""
        found = [
            lease
            for lease in self._leases
            if lease.state is LeaseState.HELD and now_s - lease.begun_s >= self._lease_max_s
        ]
        for lease in found:
            self.remove(lease)
        return found

    def _due_s(self, lease: Lease) -> float:
        if lease.state is not LeaseState.HELD:
            return float("inf")
        due_s = lease.record.lock_end_s - lease.lock_s * _RENEW_SHARE
        return max(due_s, lease.tried_s + _RETRY_S)
