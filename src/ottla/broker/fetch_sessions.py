"""Incremental fetch sessions (KIP-227): a reader sends its partitions once, then only changes."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from ottla.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMixed,
    InvalidFetchSessionEpoch,
)
from ottla.protocol.hot_fetch import FetchedPartition, FetchPartition, FetchRequest, R
from ottla.protocol.hot_fields import TopicKey

FULL_FETCH_EPOCH: Final = 0  # open a session, in place of the named one if any
NO_SESSION_EPOCH: Final = -1  # use no session, and close the named one if any
_EPOCH_MAX: Final = 2**31 - 1
SESSION_PARTITIONS_MAX: Final = 10_000  # a reader of more sends all of them in every fetch
_PARTITIONS_MAX: Final = 100_000  # of all sessions together: slots alone bound no memory

Marks = tuple[int, int, int]  # high watermark, last stable offset, log start


class FetchSession:
    """Partitions of one reader, in the order in which they get their turn."""

    __slots__ = ("by_id", "epoch", "partitions", "session_id")

    def __init__(self, session_id: int, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.partitions: dict[tuple[TopicKey, int], tuple[FetchPartition, Marks | None]] = {}

    def update(self, topics: Iterable[tuple[TopicKey, list[FetchPartition]]]) -> None:
        """Add partitions, or change their positions and limits."""
        for key, partitions in topics:
            for partition in partitions:
                index = (key, partition.partition)
                known = self.partitions.get(index)
                self.partitions[index] = (partition, known[1] if known else None)

    def forget(self, topics: Iterable[tuple[TopicKey, list[int]]]) -> None:
        for key, indexes in topics:
            for index in indexes:
                self.partitions.pop((key, index), None)

    def topics(self) -> list[tuple[TopicKey, list[FetchPartition]]]:
        """The partitions in order; adjacent ones of one topic share an entry."""
        grouped: list[tuple[TopicKey, list[FetchPartition]]] = []
        for (key, _), (partition, _) in self.partitions.items():
            if grouped and grouped[-1][0] == key:
                grouped[-1][1].append(partition)
            else:
                grouped.append((key, [partition]))
        return grouped

    def changes(
        self, topics: list[tuple[TopicKey, list[FetchedPartition[R]]]]
    ) -> list[tuple[TopicKey, list[FetchedPartition[R]]]]:
        """Only what the reader does not know yet: data, errors, changed marks.

        A partition that gave data goes to the end, so that each gets its turn when a response
        cannot hold them all.
        """
        changes: list[tuple[TopicKey, list[FetchedPartition[R]]]] = []
        for key, partitions in topics:
            changed = [p for p in partitions if self._is_changed(key, p)]
            if changed:
                changes.append((key, changed))
        return changes

    def _is_changed(self, key: TopicKey, fetched: FetchedPartition[R]) -> bool:
        index = (key, fetched.partition)
        if index not in self.partitions:
            return False  # removed meanwhile: a session can be used from another connection
        requested, known = self.partitions[index]
        marks = (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset)
        if fetched.error_code:
            self.partitions[index] = (requested, None)  # an error is sent each time
            return True
        self.partitions[index] = (requested, marks)
        if fetched.records is not None:
            self.partitions[index] = self.partitions.pop(index)
            return True
        return marks != known or fetched.is_urgent


class FetchSessions:
    """A bounded number of sessions; the least recently used one is evicted."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._last_id = 0
        self._partition_count = 0
        self._of_replicas: dict[int, int] = {}  # the session of each follower, never evicted
        self.continued_count = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, *, by_id: bool) -> FetchSession | None:
        """The session that a request continues or opens, updated by it; None without a session."""
        if request.session_epoch == NO_SESSION_EPOCH:
            self._close(request.session_id)
            return None
        if request.session_epoch == FULL_FETCH_EPOCH:
            self._close(request.session_id)
            return self._open(request, by_id)
        return self._continue(request, by_id)

    def _open(self, request: FetchRequest, by_id: bool) -> FetchSession | None:
        if not request.topics or not (self.slots or request.replica_id >= 0):
            return None
        is_replica = request.replica_id >= 0
        count = sum(len(partitions) for _, partitions in request.topics)
        if count > SESSION_PARTITIONS_MAX and not is_replica:
            return None
        session = FetchSession(self._last_id % _EPOCH_MAX + 1, by_id)
        session.update(request.topics)
        assert session.session_id not in self._sessions, "a session id is given once"
        self._last_id = session.session_id
        self._sessions[session.session_id] = session
        self._partition_count += len(session.partitions)
        if is_replica:
            self._close(self._of_replicas.get(request.replica_id, 0))
            self._of_replicas[request.replica_id] = session.session_id
        self._make_room()
        return session

    def _make_room(self) -> None:
        while len(self._sessions) > self.slots or self._partition_count > _PARTITIONS_MAX:
            kept = self._of_replicas.values()
            oldest = next((one for one in self._sessions if one not in kept), None)
            if oldest is None:
                return
            self._close(oldest)
            self.evicted_count += 1

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            assert self._partition_count >= 0, "partitions of closed sessions are counted once"

    def _continue(self, request: FetchRequest, by_id: bool) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {request.session_id} is at epoch {session.epoch},"
                f" not {request.session_epoch}"
            )
        if session.by_id != by_id:
            raise FetchSessionTopicIdMixed("a fetch session goes by names or by ids, not both")
        self.continued_count += 1
        session.epoch = session.epoch % _EPOCH_MAX + 1
        self._partition_count -= len(session.partitions)
        session.forget(request.forgotten)
        session.update(request.topics)
        self._partition_count += len(session.partitions)
        if len(session.partitions) > SESSION_PARTITIONS_MAX and request.replica_id < 0:
            self._close(session.session_id)
            raise FetchSessionIdNotFound("too many partitions for a fetch session")
        self._sessions.move_to_end(session.session_id)
        self._make_room()
        return session
