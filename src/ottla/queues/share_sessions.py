"""Share sessions: which partitions a member of a share group fetches from this broker.

ShareFetch and ShareAcknowledge of a member count one epoch together: 0 opens a session, then each
request has the next number, and -1 closes it. A session ends with its connection, too.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.model import Uuid
from ottla.queues.errors import (
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from ottla.queues.lost_offsets import LostOffsets

OPENING: Final = 0  # instead of an epoch
CLOSING: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
_PARTITIONS_MAX: Final = 100_000  # of all sessions together: their number alone bounds no memory


class SessionKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    """A partition of a session."""

    topic_id: Uuid
    partition: int


@dataclass(slots=True, eq=False)
class ShareSession:
    """Partitions of one member, in the order in which they get their turn."""

    key: SessionKey
    connection: Hashable
    epoch: int = 1  # of the next request
    partitions: dict[SharedPartition, None] = field(default_factory=dict)
    lost: dict[SharedPartition, LostOffsets] = field(default_factory=dict)

    def end_turn(self, partition: SharedPartition) -> None:
        """The partition gave records: the others come first next time."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connections: dict[Hashable, dict[SessionKey, None]] = {}
        self._use_counts = Counter[tuple[str, SharedPartition]]()  # sessions of each
        self._partition_count = 0
        self._losing: dict[SessionKey, None] = {}  # sessions that have lost offsets

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, connection: Hashable, sessions_max: int) -> ShareSession:
        """A new session, in place of the member's last one."""
        if key not in self._sessions and len(self) >= sessions_max:
            raise ShareSessionLimitReached(
                f"there are {sessions_max} share sessions, as many as"
                " group.share.max.share.sessions allows"
            )
        self.close(key)
        session = self._sessions[key] = ShareSession(key, connection)
        self._of_connections.setdefault(connection, {})[key] = None
        return session

    def advance(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session that a request continues or, with -1, is about to close."""
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFound(f"{key.member_id!r} has no share session here")
        if epoch == CLOSING:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(
                f"the share session is at epoch {session.epoch}, not {epoch}"
            )
        session.epoch = session.epoch % _EPOCH_MAX + 1
        return session

    def note_lost(self, key: SessionKey, partition: SharedPartition, start: int, end: int) -> None:
        """The session's member holds these offsets no more, and has not acknowledged them."""
        session = self._sessions.get(key)
        if session is not None:
            session.lost.setdefault(partition, LostOffsets()).add(start, end)
            self._losing[key] = None

    @property
    def has_lost(self) -> bool:
        """True if a session may have lost offsets."""
        return bool(self._losing)

    def lost(self, key: SessionKey, partition: SharedPartition) -> LostOffsets | None:
        """Offsets that the session's member has lost; None, as most often, if there are none."""
        session = self._sessions.get(key)
        return None if session is None else session.lost.get(partition)

    def close(self, key: SessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._losing.pop(key, None)
            keys = self._of_connections[session.connection]
            del keys[key]
            if not keys:
                del self._of_connections[session.connection]
            for partition in session.partitions:
                self._end_use(key.group_id, partition)
        return session

    def close_connection(self, connection: Hashable) -> list[ShareSession]:
        """The sessions that ended with a connection."""
        keys = list(self._of_connections.get(connection, ()))
        return [session for key in keys if (session := self.close(key)) is not None]

    def has_connection(self, connection: Hashable) -> bool:
        return connection in self._of_connections

    def update(
        self,
        session: ShareSession,
        added: Iterable[SharedPartition],
        removed: Iterable[SharedPartition],
    ) -> None:
        """Change the partitions of a session."""
        group_id = session.key.group_id
        for partition in added:
            if partition not in session.partitions:
                if self._partition_count >= _PARTITIONS_MAX:
                    raise ShareSessionLimitReached("all share sessions have too many partitions")
                self._partition_count += 1
                session.partitions[partition] = None
                self._use_counts[group_id, partition] += 1
        for partition in removed:
            if partition in session.partitions:
                del session.partitions[partition]
                self._end_use(group_id, partition)

    def is_used(self, group_id: str, partition: SharedPartition) -> bool:
        """True if a session of the group has the partition."""
        return (group_id, partition) in self._use_counts

    def _end_use(self, group_id: str, partition: SharedPartition) -> None:
        self._partition_count -= 1
        self._use_counts[group_id, partition] -= 1
        if not self._use_counts[group_id, partition]:
            del self._use_counts[group_id, partition]
