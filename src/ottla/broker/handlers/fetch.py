"""Fetch (1), versions 4 to 18: long poll, sessions (KIP-227), topic ids, leader epochs.

Partitions are served in the order of the request; the first one with data gives at least one
batch, however large. What is sent are ranges of segment files. Too little data means one bounded
wait for the partitions asked for, and a second read.
A fetch of more partitions than a session may hold is read in slices and does not register as a
reader: it looks again after a while.
Not done: followers. A fetch that names a replica gets CLUSTER_AUTHORIZATION_FAILED.
"""

import asyncio
from collections.abc import Iterator
from types import CoroutineType
from typing import Any, Final, TypeAlias, cast

from ottla.broker.fetch_sessions import (
    FULL_FETCH_EPOCH,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
)
from ottla.broker.pending import Part, Pending, Response
from ottla.broker.services import Services
from ottla.errors import ApiError, ClusterAuthorizationFailed
from ottla.model import LeaderEpoch, Offset
from ottla.protocol.hot import (
    FETCH_TOPIC_IDS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    TopicKey,
    read_fetch,
    write_fetched,
)
from ottla.replication.partition import LeaderPartition
from ottla.storage.log import FileRange

_READ_COMMITTED: Final = 1
_COSTLY_PARTITIONS: Final = 100  # in one fetch; with fewer, looking again costs next to nothing
_REST_S_PER_PARTITION: Final = 1e-4  # after a look in vain: ten times of what the look took
_MANY_BYTES: Final = 16 * SESSION_PARTITIONS_MAX  # a request is larger that names too many for one
_PARTITIONS_PER_SLICE: Final = 500

Wanted = list[tuple[TopicKey, list[FetchPartition]]]
FetchedHere = FetchedPartition[FileRange]
Many: TypeAlias = "CoroutineType[Any, Any, list[Part]]"  # makes an answer of very many partitions
Fetched = list[tuple[TopicKey, list[FetchedHere]]]


class Fetch:
    """Reads for consumers; owner of the fetch sessions."""

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self.loop = asyncio.get_running_loop()
        self.locate = services.replicas.locate
        self.sessions = FetchSessions(services.settings.broker.fetch_sessions_max)
        self.bytes_count = 0

    def take(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> "Response | Many":
        """The answer, a promise of it, or, for very many partitions, how to make it."""
        elements_max = self._settings.broker.request_elements_max
        request = read_fetch(frame, position, version, elements_max)
        try:
            session = self.sessions.resolve(request, by_id=version >= FETCH_TOPIC_IDS)
        except ApiError as refused:
            nothing: Fetched = []
            return write_fetched(correlation_id, version, nothing, error_code=refused.code)
        fetch = _OneFetch(self, request, session, version, correlation_id)
        if len(frame) > _MANY_BYTES and session is None:
            return cast("Many", fetch.answer_many(self._wait_s(request)))
        if fetch.try_answer(is_last_try=request.wait_ms_max <= 0):
            return fetch.parts
        return fetch.wait(self._wait_s(request))

    def _wait_s(self, request: FetchRequest) -> float:
        return min(request.wait_ms_max, self._settings.broker.fetch_wait_max_ms) / 1000

    def bytes_enough(self, request: FetchRequest) -> int:
        """What a reader waits for: not for more than one answer can hold."""
        return min(request.bytes_min, request.bytes_max, self._settings.broker.fetch_bytes_max)

    def read(
        self, wanted: Wanted, request: FetchRequest, total_bytes: int = 0
    ) -> tuple[Fetched, int, bool]:
        """What there is now: per partition, in all bytes, and whether anything went wrong.

        `total_bytes` were found before, in other partitions of the same request.
        """
        left_bytes = min(request.bytes_max, self._settings.broker.fetch_bytes_max) - total_bytes
        has_error = False
        fetched: Fetched = []
        for key, partitions in wanted:
            results = []
            for want in partitions:
                try:
                    partition = self.locate(key, want.partition)
                    result = _read_partition(
                        partition, want, request, left_bytes, at_least_one=not total_bytes
                    )
                except ApiError as refused:
                    result = FetchedPartition(want.partition, refused.code)
                    has_error = True
                if result.records is not None:
                    total_bytes += result.records.size_bytes
                    left_bytes -= result.records.size_bytes
                has_error = has_error or result.diverging is not None
                results.append(result)
            fetched.append((key, results))
        return fetched, total_bytes, has_error


class _OneFetch:
    """One request: tried at once, and again when there is more to read or time is up."""

    __slots__ = (
        "_correlation_id",
        "_handler",
        "_has_news",
        "_partitions",
        "_pending",
        "_request",
        "_rest",
        "_session",
        "_timer",
        "_version",
        "_wanted",
        "parts",
    )

    def __init__(
        self,
        handler: Fetch,
        request: FetchRequest,
        session: FetchSession | None,
        version: int,
        correlation_id: int,
    ) -> None:
        self._handler = handler
        self._request = request
        self._session = session
        self._version = version
        self._correlation_id = correlation_id
        self._wanted = request.topics if session is None else session.topics()
        self._partitions: list[LeaderPartition] = []
        self._pending: Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._has_news = False
        self.parts: list[Part] = []

    def try_answer(self, *, is_last_try: bool) -> bool:
        """Read; True when that is worth sending, and `parts` holds it."""
        request = self._request
        fetched, total_bytes, has_error = self._handler.read(self._wanted, request)
        is_enough = total_bytes >= self._handler.bytes_enough(request) or has_error
        if not (is_enough or is_last_try or not self._wanted):
            return False
        session = self._session
        # The first answer of a session, like one without, lists every partition.
        if session is not None and request.session_epoch != FULL_FETCH_EPOCH:
            fetched = session.changes(fetched)
        elif session is not None:
            session.changes(fetched)
        self._handler.bytes_count += total_bytes
        self.parts = write_fetched(
            self._correlation_id,
            self._version,
            fetched,
            session_id=session.session_id if session is not None else 0,
        )
        return True

    async def answer_many(self, wait_s: float) -> list[Part]:
        """Read in slices; again after a rest, until there is enough or time is up."""
        request, loop = self._request, self._handler.loop
        deadline_s = loop.time() + max(wait_s, 0)
        while True:
            fetched, total_bytes, has_error = await self._read_many()
            left_s = deadline_s - loop.time()
            if total_bytes >= self._handler.bytes_enough(request) or has_error or left_s <= 0:
                break
            count = sum(len(partitions) for _, partitions in self._wanted)
            await asyncio.sleep(min(count * _REST_S_PER_PARTITION, left_s))
        self._handler.bytes_count += total_bytes
        return write_fetched(self._correlation_id, self._version, fetched)

    async def _read_many(self) -> tuple[Fetched, int, bool]:
        fetched: Fetched = []
        total_bytes, has_error = 0, False
        for some in _slices(self._wanted):
            found, total_bytes, is_wrong = self._handler.read(some, self._request, total_bytes)
            if fetched and found and fetched[-1][0] == found[0][0]:
                fetched[-1][1].extend(found.pop(0)[1])  # the rest of a topic that was cut
            fetched += found
            has_error = has_error or is_wrong
            await asyncio.sleep(0)
        return fetched, total_bytes, has_error

    def wait(self, wait_s: float) -> Pending:
        self._pending = Pending(is_barrier=True)
        self._pending.on_abandon(self._stop)
        for key, wants in self._wanted:
            for want in wants:
                partition = self._handler.locate(key, want.partition)
                partition.add_reader(self._wake)
                self._partitions.append(partition)
        self._timer = self._handler.loop.call_later(wait_s, self._time_out)
        return self._pending

    def _wake(self) -> None:
        if self._rest is not None:
            self._has_news = True
        elif self.try_answer(is_last_try=False):
            self._finish()
        elif len(self._partitions) >= _COSTLY_PARTITIONS:
            # Every append wakes us, and every look reads all partitions: not too often.
            rest_s = len(self._partitions) * _REST_S_PER_PARTITION
            self._has_news = False
            self._rest = self._handler.loop.call_later(rest_s, self._end_rest)

    def _end_rest(self) -> None:
        self._rest = None
        if self._has_news:
            self._wake()

    def _time_out(self) -> None:
        self.try_answer(is_last_try=True)
        self._finish()

    def _finish(self) -> None:
        self._stop()
        assert self._pending is not None
        self._pending.complete(self.parts)

    def _stop(self) -> None:
        for partition in self._partitions:
            partition.remove_reader(self._wake)
        self._partitions.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._rest is not None:
            self._rest.cancel()


def _slices(wanted: Wanted) -> Iterator[Wanted]:
    """The partitions in their order, some at a time; a topic may go on in the next slice."""
    some: Wanted = []
    left = _PARTITIONS_PER_SLICE
    for key, partitions in wanted:
        for first in range(0, len(partitions), _PARTITIONS_PER_SLICE) or (0,):
            part = partitions[first : first + _PARTITIONS_PER_SLICE]
            some.append((key, part))
            left -= 1 + len(part)
            if left <= 0:
                yield some
                some, left = [], _PARTITIONS_PER_SLICE
    if some:
        yield some


def _read_partition(
    partition: LeaderPartition,
    want: FetchPartition,
    request: FetchRequest,
    left_bytes: int,
    *,
    at_least_one: bool,
) -> FetchedHere:
    if request.replica_id >= 0:
        raise ClusterAuthorizationFailed("only brokers of this cluster fetch as replicas")
    partition.check_epoch(want.leader_epoch)
    log = partition.log
    read_committed = request.isolation_level == _READ_COMMITTED
    high_watermark = partition.high_watermark
    end = partition.readable_end(read_committed=read_committed)
    stable = end if read_committed else log.last_stable_offset(high_watermark)
    if want.last_fetched_epoch >= 0:
        epoch, epoch_end = log.epoch_end(LeaderEpoch(want.last_fetched_epoch))
        if epoch != want.last_fetched_epoch or epoch_end < want.offset:
            return FetchedPartition(
                want.partition,
                0,
                high_watermark,
                stable,
                log.start_offset,
                diverging=(epoch, epoch_end),
            )
    partition.check_offset(want.offset)
    records = None
    bytes_max = min(want.bytes_max, left_bytes)
    if want.offset < end and (bytes_max > 0 or at_least_one):
        records = log.read(Offset(want.offset), end, max(bytes_max, 0), at_least_one=at_least_one)
    aborted: list[tuple[int, int]] | None = None
    if read_committed:
        aborted = []
        if records is not None:
            aborted = [
                (one.producer_id, one.first_offset)
                for one in log.aborted_transactions(Offset(want.offset), records.end_offset)
            ]
    return FetchedPartition(
        want.partition, 0, high_watermark, stable, log.start_offset, aborted, None, records
    )
