"""Incremental fetch sessions (KIP-227): a reader sends its partitions once, then only changes.

The other way round it is the same: a partition of a session says when it is worth a read, so that a
fetch costs what has changed since the last one, however many partitions the session has.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.consumer_reads import Readable
from ottla.errors import (
    ApiError,
    FetchSessionIdNotFound,
    FetchSessionTopicIdMixed,
    InvalidFetchSessionEpoch,
)
from ottla.model import BrokerId
from ottla.protocol.hot_fetch import (
    NO_WATERMARK,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    R,
)
from ottla.protocol.hot_fields import TopicKey
from ottla.replication.followers import FollowerClock
from ottla.replication.partition import LeaderPartition
from ottla.replication.waiters import Readers

FULL_FETCH_EPOCH: Final = 0  # open a session, in place of the named one if any
NO_SESSION_EPOCH: Final = -1  # use no session, and close the named one if any
_EPOCH_MAX: Final = 2**31 - 1
SESSION_PARTITIONS_MAX: Final = 10_000  # a reader of more sends all of them in every fetch
_PARTITIONS_MAX: Final = 100_000  # of all sessions together: slots alone bound no memory
_NO_BROKER: Final = (-1, -1)

Marks = tuple[int, int, int]  # high watermark, last stable offset, log start
Locate: TypeAlias = Callable[[TopicKey, int], Readable]
Soon: TypeAlias = Callable[[Callable[[], None]], object]  # runs a callback in the next turn


class SessionPartition:
    """A partition of a session: what its reader wants of it, and what the reader knows.

    It watches the partition that is served here, and is due when the reader may not know all.
    """

    __slots__ = ("_session", "key", "known", "partition", "want")

    def __init__(self, session: "FetchSession", key: TopicKey, want: FetchPartition) -> None:
        self.key = key  # of its topic
        self.want = want
        self.known: Marks | None = None
        self.partition: Readable | None = None
        self._session = session

    def watch(self, partition: Readable) -> None:
        """Be notified by this partition, and by no other."""
        if partition is self.partition or self._session.is_closed:
            return
        self.unwatch()
        self.partition = partition
        if self._session.follower is None:
            partition.watchers.watch_commits(self)
        else:
            assert isinstance(partition, LeaderPartition), "a follower is served by leaders"
            partition.watchers.watch_appends(self)

    def unwatch(self) -> None:
        partition, self.partition = self.partition, None
        if partition is None:
            return
        partition.watchers.remove(self)
        follower = self._session.follower
        if follower is not None and isinstance(partition, LeaderPartition):
            partition.followers.forget_clock(follower.broker, follower.clock)

    def note_appended(self) -> None:
        self._session.note_due(self)

    def note_committed(self) -> None:
        """A follower learns of it with the next records, unless consumers read there."""
        if self._session.follower is None or self.want.high_watermark != NO_WATERMARK:
            self._session.note_due(self)
        else:
            self._session.due[self] = None

    def note_changed(self) -> None:
        self._session.note_due(self)

    @property
    def must_be_read(self) -> bool:
        """True while the partition has to know of each fetch, whether there is news or not."""
        follower, partition = self._session.follower, self.partition
        return (
            follower is not None
            and isinstance(partition, LeaderPartition)
            and partition.must_note(follower.broker)
        )


class SessionFollower(NamedTuple):
    """The broker that fetches in a session as a follower."""

    broker: BrokerId
    epoch: int  # of its registration
    clock: FollowerClock


class FetchSession:
    """Partitions of one reader, and which of them are due: only these are read."""

    __slots__ = (
        "by_id",
        "due",
        "epoch",
        "follower",
        "is_closed",
        "partitions",
        "readers",
        "session_id",
    )

    def __init__(
        self, session_id: int, by_id: bool, follower: SessionFollower | None, soon: Soon
    ) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.follower = follower
        self.epoch = 1
        self.is_closed = False
        self.partitions: dict[tuple[TopicKey, int], SessionPartition] = {}
        self.due: dict[SessionPartition, None] = {}  # in the order in which they get their turn
        self.readers = Readers(soon)  # fetches that wait

    @property
    def reader(self) -> tuple[int, int]:
        """The broker and its epoch, as its requests say them; those of consumers say none."""
        if self.follower is None:
            return _NO_BROKER
        return self.follower.broker, self.follower.epoch

    def note_due(self, partition: SessionPartition) -> None:
        """Have a partition read by the fetch that waits, or by the next one."""
        self.due[partition] = None
        if self.readers:
            self.readers.wake_soon()

    def update(self, topics: Iterable[tuple[TopicKey, list[FetchPartition]]]) -> None:
        """Add partitions, or change their positions and limits."""
        partitions, due = self.partitions, self.due
        for key, wants in topics:
            for want in wants:
                known = partitions.get((key, want.partition))
                if known is None:
                    known = partitions[key, want.partition] = SessionPartition(self, key, want)
                known.want = want
                due[known] = None

    def forget(self, topics: Iterable[tuple[TopicKey, list[int]]]) -> None:
        for key, indexes in topics:
            for index in indexes:
                gone = self.partitions.pop((key, index), None)
                if gone is not None:
                    self.due.pop(gone, None)
                    gone.unwatch()

    def close(self) -> None:
        """Watch nothing any more; a fetch that waits is woken, to respond with what there is."""
        self.is_closed = True
        for partition in self.partitions.values():
            partition.unwatch()
        self.readers.wake_soon()

    def read_all(self) -> None:
        """Make every partition due."""
        self.due.update(dict.fromkeys(self.partitions.values()))

    def wanted(self) -> list[tuple[TopicKey, list[FetchPartition]]]:
        """The partitions that are due, in order; adjacent ones of one topic share an entry."""
        grouped: list[tuple[TopicKey, list[FetchPartition]]] = []
        for partition in self.due:
            key = partition.key
            if grouped and grouped[-1][0] == key:
                grouped[-1][1].append(partition.want)
            else:
                grouped.append((key, [partition.want]))
        return grouped

    def watching(self, locate: Locate) -> Locate:
        """`locate`, and whatever it finds is watched."""

        def watch(key: TopicKey, index: int) -> Readable:
            watched = self.partitions[key, index]
            try:
                partition = locate(key, index)
            except ApiError:
                watched.unwatch()
                raise
            watched.watch(partition)
            return partition

        return watch

    def rest(self, topics: Iterable[tuple[TopicKey, list[FetchedPartition[R]]]]) -> None:
        """Partitions were read for a fetch that waits. Those without news are due no more."""
        for key, partitions in topics:
            for fetched in partitions:
                read = self.partitions.get((key, fetched.partition))
                if read is not None and read.known == _marks(fetched) and not _must_tell(fetched):
                    self._end_turn(read, fetched)

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
        read = self.partitions.get((key, fetched.partition))
        if read is None:
            return False  # removed meanwhile: a session can be used from another connection
        known, read.known = read.known, _marks(fetched)
        if not _must_tell(fetched):
            self._end_turn(read, fetched)
            return known != read.known
        if fetched.error_code:
            read.known = None  # an error is sent each time
        elif read in self.due:
            del self.due[read]
            self.due[read] = None
        return True

    def _end_turn(self, read: SessionPartition, fetched: FetchedPartition[R]) -> None:
        """The reader has everything of a partition, unless there was no room for it."""
        if not fetched.is_left_out and not read.must_be_read:
            self.due.pop(read, None)


def _marks(fetched: FetchedPartition[R]) -> Marks:
    return fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset


def _must_tell(fetched: FetchedPartition[R]) -> bool:
    """True if the reader has to act, and the partition stays due until it has."""
    return bool(fetched.error_code) or fetched.records is not None or fetched.is_urgent


class FetchSessions:
    """A bounded number of sessions; the least recently used one is evicted."""

    def __init__(self, slots: int, soon: Soon) -> None:
        self.slots = slots
        self._soon = soon
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
        follower = None
        if is_replica:
            broker = BrokerId(request.replica_id)
            follower = SessionFollower(broker, request.replica_epoch, FollowerClock())
        session = FetchSession(self._last_id % _EPOCH_MAX + 1, by_id, follower, self._soon)
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
            session.close()
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
        if session.reader != (request.replica_id, request.replica_epoch):
            raise FetchSessionIdNotFound(f"fetch session {request.session_id} is another reader's")
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
