"""ConsumerGroupHeartbeat without the wire: the request, its checks, and the result."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from ottla.coordinator.groups.consumer_records import MemberStored
from ottla.coordinator.groups.topics import Partitions
from ottla.errors import ErrorCode, InvalidRequest, UnsupportedAssignor

JOINING: Final = 0  # instead of an epoch
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2  # a static member that will be back


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """The fields of ConsumerGroupHeartbeat that a group uses; None means unchanged."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    makes_own_id: bool = True  # from version 1 on

    @property
    def is_full(self) -> bool:
        """True if every field is sent: the client may have missed the last assignment."""
        has_topics = self.topics is not None or self.pattern is not None
        return self.epoch == JOINING or (
            self.rebalance_timeout_ms is not None and has_topics and self.owned is not None
        )

    def check(self, assignors: Collection[str]) -> None:
        """Raise an ApiError if the fields contradict each other, whatever the group's state."""
        if self.epoch < LEAVING_FOR_A_WHILE:
            raise InvalidRequest(f"{self.epoch} is not the epoch of a member")
        if not self.member_id and (self.epoch != JOINING or self.makes_own_id):
            raise InvalidRequest("a member id must be given")
        if self.instance_id == "" or self.rack_id == "":
            raise InvalidRequest("an instance id or rack id must not be empty")
        if self.epoch == LEAVING_FOR_A_WHILE and self.instance_id is None:
            raise InvalidRequest("only a member with an instance id can leave for a while")
        if self.epoch == JOINING:
            self._check_join()
        if self.assignor is not None and self.assignor not in assignors:
            raise UnsupportedAssignor(f"{self.assignor!r} is not one of {', '.join(assignors)}")

    def _check_join(self) -> None:
        if self.rebalance_timeout_ms is None:
            raise InvalidRequest("a rebalance timeout must be given when joining")
        if self.owned is None or self.owned:
            raise InvalidRequest("a member that joins must own no partitions")
        if not self.topics and not self.pattern:
            raise InvalidRequest("topics or a regular expression must be given when joining")

    def updated(self, known: MemberStored, member_id: str) -> MemberStored:
        """The member as this heartbeat describes it, under this id."""
        if self.epoch == JOINING:  # all fields are sent, and those that are not are unset
            known = replace(known, rack_id=None, topics=(), pattern=None, assignor=None)
        timeout_ms = self.rebalance_timeout_ms
        return replace(
            known,
            member_id=member_id,
            instance_id=self.instance_id or known.instance_id,
            rack_id=self.rack_id or known.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=known.topics if self.topics is None else tuple(sorted(self.topics)),
            pattern=known.pattern if self.pattern is None else self.pattern or None,
            rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
            assignor=self.assignor or known.assignor,
            classic=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The result of a heartbeat; `assigned` is None if it has not changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assigned: Partitions | None = None
