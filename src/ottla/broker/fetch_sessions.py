"""Incremental fetch sessions (KIP-227): what a reader wants is said once, then only its changes."""

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

FULL_FETCH_EPOCH: Final = 0  # "give me a session", or a new one for an old one
NO_SESSION_EPOCH: Final = -1  # "no session", or "close mine"
_EPOCH_MAX: Final = 2**31 - 1
SESSION_PARTITIONS_MAX: Final = 10_000  # who wants more says so in every fetch
_PARTITIONS_MAX: Final = 100_000  # wanted in all sessions together: slots alone bound no memory

Marks = tuple[int, int, int]  # high watermark, last stable offset, log start


class FetchSession:
    """What one reader wants, in the order in which partitions get their turn."""

    __slots__ = ("by_id", "epoch", "session_id", "wanted")

    def __init__(self, session_id: int, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.wanted: dict[tuple[TopicKey, int], tuple[FetchPartition, Marks | None]] = {}

    def want(self, topics: Iterable[tuple[TopicKey, list[FetchPartition]]]) -> None:
        """Add partitions, or change what is wanted of them."""
        for key, partitions in topics:
            for partition in partitions:
                place = (key, partition.partition)
                known = self.wanted.get(place)
                self.wanted[place] = (partition, known[1] if known else None)

    def forget(self, topics: Iterable[tuple[TopicKey, list[int]]]) -> None:
        for key, indexes in topics:
            for index in indexes:
                self.wanted.pop((key, index), None)

    def topics(self) -> list[tuple[TopicKey, list[FetchPartition]]]:
        """What is wanted, in order; neighbours of one topic share an entry."""
        grouped: list[tuple[TopicKey, list[FetchPartition]]] = []
        for (key, _), (partition, _) in self.wanted.items():
            if grouped and grouped[-1][0] == key:
                grouped[-1][1].append(partition)
            else:
                grouped.append((key, [partition]))
        return grouped

    def news(
        self, topics: list[tuple[TopicKey, list[FetchedPartition[R]]]]
    ) -> list[tuple[TopicKey, list[FetchedPartition[R]]]]:
        """Only what the reader does not know yet: data, errors, changed marks.

        A partition that gave data goes to the end, so that each gets its turn when an answer
        cannot hold them all.
        """
        news: list[tuple[TopicKey, list[FetchedPartition[R]]]] = []
        for key, partitions in topics:
            fresh = [p for p in partitions if self._is_news(key, p)]
            if fresh:
                news.append((key, fresh))
        return news

    def _is_news(self, key: TopicKey, fetched: FetchedPartition[R]) -> bool:
        place = (key, fetched.partition)
        if place not in self.wanted:
            return False  # forgotten meanwhile: a session can be used from another connection
        wanted, known = self.wanted[place]
        marks = (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset)
        if fetched.error_code:
            self.wanted[place] = (wanted, None)  # an error is told each time
            return True
        self.wanted[place] = (wanted, marks)
        if fetched.records is not None:
            self.wanted[place] = self.wanted.pop(place)
            return True
        return marks != known or fetched.diverging is not None


class FetchSessions:
    """A bounded number of sessions; the one that was not used for longest makes room."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._last_id = 0
        self._partition_count = 0
        self.continued_count = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, *, by_id: bool) -> FetchSession | None:
        """The session a request goes on with or opens, its wants up to date; None: no session."""
        if request.session_epoch == NO_SESSION_EPOCH:
            self._close(request.session_id)
            return None
        if request.session_epoch == FULL_FETCH_EPOCH:
            self._close(request.session_id)
            return self._open(request, by_id)
        return self._go_on(request, by_id)

    def _open(self, request: FetchRequest, by_id: bool) -> FetchSession | None:
        if not self.slots or not request.topics:
            return None
        if sum(len(partitions) for _, partitions in request.topics) > SESSION_PARTITIONS_MAX:
            return None
        session = FetchSession(self._last_id % _EPOCH_MAX + 1, by_id)
        session.want(request.topics)
        self._last_id = session.session_id
        self._sessions[session.session_id] = session
        self._partition_count += len(session.wanted)
        self._make_room()
        return session

    def _make_room(self) -> None:
        while len(self._sessions) > self.slots or self._partition_count > _PARTITIONS_MAX:
            self._close(next(iter(self._sessions)))
            self.evicted_count += 1

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.wanted)

    def _go_on(self, request: FetchRequest, by_id: bool) -> FetchSession:
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
        self._partition_count -= len(session.wanted)
        session.forget(request.forgotten)
        session.want(request.topics)
        self._partition_count += len(session.wanted)
        if len(session.wanted) > SESSION_PARTITIONS_MAX:
            self._close(session.session_id)
            raise FetchSessionIdNotFound("too many partitions for a fetch session")
        self._sessions.move_to_end(session.session_id)
        self._make_room()
        return session
