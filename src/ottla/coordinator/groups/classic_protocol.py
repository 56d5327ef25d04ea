"""The classic group protocol: requests and results of JoinGroup and SyncGroup, and its limits."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.errors import ErrorCode

NO_GENERATION: Final = -1


class Protocol(NamedTuple):
    """An assignor that a member supports, with the metadata that the member sends for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The fields of JoinGroup that a group uses."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_known_id: bool  # from version 4 on, a new member first fetches an id
    supports_skip_assignment: bool  # from version 9 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The fields of SyncGroup that a group uses; `assignments` is sent by the leader."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result of a join."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()  # only for the leader
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The result of a sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings of classic groups."""

    initial_delay_ms: int = 3000
    members_max: int = 2**31 - 1
    session_timeout_min_ms: int = 6000
    session_timeout_max_ms: int = 1_800_000
    stored_bytes_max: int = 16 << 20  # of a generation in the log, where it is one record
