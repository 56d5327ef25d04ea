"""Fetch (1), versions 4 to 18: long poll, sessions (KIP-227), topic ids, leader epochs.

Partitions are served in the order of the request; the first one with data gives at least one
batch, however large. Responses carry ranges of segment files. If there is too little data, the
response is pending: the partitions are read again when they grow, and once more when time is up.
Batches without records, which compaction leaves, are read over if all of a range are. Records
that wait are hidden by a lens; a response that only takes a reader over such waits like an empty
one.
A fetch of more partitions than a session may hold is read in slices and does not register as a
reader: it reads again after a while.
A broker that fetches as a follower proves with its token who it is; it reads up to the log's end,
and is woken by appends, where a consumer is woken by commits.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import CoroutineType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from ottla.broker.consumer_reads import (
    ConsumerReads,
    NearReads,
    NearReplicas,
    Readable,
)
from ottla.broker.fetch_sessions import (
    FULL_FETCH_EPOCH,
    NO_SESSION_EPOCH,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
    Locate,
)
from ottla.broker.leader_hints import HINTED_ERRORS, leader_hint
from ottla.broker.pending import Part, Pending, Response
from ottla.broker.replica_reads import RefusedReads, ReplicaReads, check_follower
from ottla.broker.services import Services
from ottla.broker.traffic import Traffic
from ottla.errors import ApiError
from ottla.protocol.hot_fetch import (
    FETCH_TOPIC_IDS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    read_fetch,
    write_fetched,
)
from ottla.protocol.hot_fields import TopicKey
from ottla.storage.log_read import FileRange

_COSTLY_PARTITIONS: Final = 100  # in one fetch; with fewer, looking again costs next to nothing
_REST_S_PER_PARTITION: Final = 1e-4  # after a look in vain: ten times of what the look took
_MANY_BYTES: Final = 16 * SESSION_PARTITIONS_MAX  # a request is larger that names too many for one
_PARTITIONS_PER_SLICE: Final = 500

Wanted = list[tuple[TopicKey, list[FetchPartition]]]
FetchedHere = FetchedPartition[FileRange]
Many: TypeAlias = "CoroutineType[Any, Any, list[Part]]"  # of the response for very many partitions
Fetched = list[tuple[TopicKey, list[FetchedHere]]]


class Exchange(NamedTuple):
    """A fetch request, and what its response needs."""

    request: FetchRequest
    session: FetchSession | None
    version: int
    correlation_id: int
    reads: "Reads"
    locate: Locate

    @property
    def wanted(self) -> Wanted:
        """The partitions of the request; those of its session that are due now."""
        return self.request.topics if self.session is None else self.session.wanted()


class Reads(Protocol):
    """The way in which a fetch reads one partition: as a consumer, or as a follower."""

    def read(
        self, partition: Readable, want: FetchPartition, left_bytes: int, *, at_least_one: bool
    ) -> FetchedHere: ...


class Reading(NamedTuple):
    """The result of one read of a request's partitions."""

    fetched: Fetched
    total_bytes: int
    is_urgent: bool  # there is an error, or something else than records that must be known
    has_records: bool  # even if they are only such as a reader does not see
    partitions: list[Readable]  # those that were read; all of them if there is no error


class Fetch:
    """Reads for consumers; owner of the fetch sessions."""

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self._state = services.state
        self._clock = services.clock
        self._loop = asyncio.get_running_loop()
        self._locate = services.replicas.locate
        self._near = NearReplicas(services.replicas, services.settings, services.clock)
        self.sessions = FetchSessions(
            services.settings.broker.fetch_sessions_max, self._loop.call_soon
        )
        self.monotonic_s = services.clock.monotonic_s
        self.traffic = Traffic()
        self.error_counts = Counter[int]()  # by code
        self._waiting: dict[_WaitingFetch, None] = {}
        self._closing = asyncio.Event()

    def take(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> "Response | Many":
        """The response, a pending one, or, for very many partitions, a coroutine of it."""
        elements_max = self._settings.broker.request_elements_max
        request = read_fetch(frame, position, version, elements_max)
        if request.replica_id < 0:
            is_large = len(frame) > _MANY_BYTES
            locate: Locate = self._locate
            consumer = ConsumerReads(request)
            if request.rack and self._near.is_enabled:
                locate, consumer = self._near.locate, NearReads(request, self._state.image)
            return self._take(request, consumer, version, correlation_id, locate, is_large)
        try:
            check_follower(self._state.image, request)
        except ApiError as refused:
            alone = request._replace(session_id=0, session_epoch=NO_SESSION_EPOCH)
            return self._take(alone, RefusedReads(refused), version, correlation_id, self._locate)
        return self._take_replica(request, version, correlation_id)

    def _take_replica(
        self, request: FetchRequest, version: int, correlation_id: int
    ) -> "Response | Many":
        reads = ReplicaReads(request, self._clock.monotonic_s())
        response = self._take(request, reads, version, correlation_id, self._locate)
        reads.end_first()
        return response

    def _take(
        self,
        request: FetchRequest,
        reads: Reads,
        version: int,
        correlation_id: int,
        locate: Locate,
        is_large: bool = False,
    ) -> "Response | Many":
        try:
            session = self.sessions.resolve(request, by_id=version >= FETCH_TOPIC_IDS)
        except ApiError as refused:
            self.error_counts[refused.code] += 1
            nothing: Fetched = []
            return write_fetched(correlation_id, version, nothing, error_code=refused.code)
        if session is not None:
            if session.follower is not None and isinstance(reads, ReplicaReads):
                reads.clock = session.follower.clock
            elif isinstance(reads, NearReads):
                session.read_all()  # where to read may change without a sign of the partition
            locate = session.watching(locate)
        exchange = Exchange(request, session, version, correlation_id, reads, locate)
        if session is None and is_large:
            return cast("Many", self._fetch_many(exchange))
        reading = self.read(exchange)
        if self._must_respond(exchange, reading):
            return self.respond(exchange, reading)
        waiting = _WaitingFetch(self, exchange, reading, self._wait_s(request), self._loop)
        self._waiting[waiting] = None
        return waiting

    def _must_respond(self, exchange: Exchange, reading: Reading) -> bool:
        """True if there is something to send, or nothing to wait for."""
        request, session = exchange.request, exchange.session
        if request.wait_ms_max <= 0 or self.is_enough(request, reading):
            return True
        if session is None:
            return not request.topics or request.replica_id >= 0
        return not session.partitions

    def close(self) -> None:
        """Respond to every fetch that waits, with the data that there is now."""
        self._closing.set()
        for waiting in list(self._waiting):
            waiting.time_out()

    @property
    def waiting_count(self) -> int:
        """Fetches that wait for data."""
        return len(self._waiting)

    def note_done(self, waiting: "_WaitingFetch") -> None:
        del self._waiting[waiting]

    def read(self, exchange: Exchange) -> Reading:
        """Read every partition of a request as it is now."""
        return _read_all(
            exchange.locate, exchange.wanted, exchange.reads, self._bytes_max(exchange)
        )

    def is_enough(self, request: FetchRequest, reading: Reading) -> bool:
        """True if a read is worth sending: a reader does not wait for more than one response
        can hold, nor behind an error."""
        if reading.is_urgent:
            return True
        fetch_bytes_max = self._settings.broker.fetch_bytes_max
        return reading.total_bytes >= min(request.bytes_min, request.bytes_max, fetch_bytes_max)

    def respond(self, exchange: Exchange, reading: Reading) -> list[Part]:
        """The response; within a session it has only the partitions that changed."""
        session, fetched = exchange.session, reading.fetched
        if reading.is_urgent and exchange.request.replica_id < 0:
            self._hint(fetched)
        if session is not None:
            changed = session.changes(fetched)
            # The first response of a session, like one without, lists every partition.
            if exchange.request.session_epoch != FULL_FETCH_EPOCH:
                fetched = changed
        if (reading.total_bytes or reading.is_urgent) and exchange.request.replica_id < 0:
            self._count(reading)
        return write_fetched(
            exchange.correlation_id,
            exchange.version,
            fetched,
            session_id=session.session_id if session is not None else 0,
        )

    def _hint(self, fetched: Fetched) -> None:
        """Say with each partition that another broker leads which one it is."""
        for key, results in fetched:
            for at, result in enumerate(results):
                if result.error_code in HINTED_ERRORS:
                    leader = leader_hint(self._state.image, key, result.partition)
                    results[at] = result._replace(leader=leader)

    def _count(self, reading: Reading) -> None:
        for key, results in reading.fetched:
            size_bytes = 0
            for result in results:
                if result.records is not None:
                    size_bytes += result.records.size_bytes
                elif result.error_code:
                    self.error_counts[result.error_code] += 1
            if size_bytes:
                self.traffic[key].size_bytes += size_bytes

    async def _fetch_many(self, exchange: Exchange) -> list[Part]:
        """Read in slices; again after a rest, until there is enough or time is up."""
        request = exchange.request
        deadline_s = self._loop.time() + max(self._wait_s(request), 0)
        while True:
            reading = await self._read_many(exchange)
            left_s = deadline_s - self._loop.time()
            if left_s <= 0 or self._closing.is_set() or self.is_enough(request, reading):
                return self.respond(exchange, reading)
            count = sum(len(partitions) for _, partitions in exchange.wanted)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(count * _REST_S_PER_PARTITION, left_s)):
                    await self._closing.wait()

    async def _read_many(self, exchange: Exchange) -> Reading:
        fetched: Fetched = []
        total_bytes, is_urgent = 0, False
        has_records = False
        for some in _slices(exchange.wanted):
            found = _read_all(
                exchange.locate, some, exchange.reads, self._bytes_max(exchange), total_bytes
            )
            total_bytes = found.total_bytes
            is_urgent = is_urgent or found.is_urgent
            has_records = has_records or found.has_records
            if fetched and found.fetched and fetched[-1][0] == found.fetched[0][0]:
                fetched[-1][1].extend(found.fetched.pop(0)[1])  # the rest of a topic that was cut
            fetched += found.fetched
            await asyncio.sleep(0)
        return Reading(fetched, total_bytes, is_urgent, has_records, [])

    def _bytes_max(self, exchange: Exchange) -> int:
        return min(exchange.request.bytes_max, self._settings.broker.fetch_bytes_max)

    def _wait_s(self, request: FetchRequest) -> float:
        return min(request.wait_ms_max, self._settings.broker.fetch_wait_max_ms) / 1000


class _WaitingFetch(Pending):
    """The response to a long poll: read again when there is more to read, or time is up."""

    __slots__ = (
        "_exchange",
        "_handler",
        "_has_more",
        "_loop",
        "_parked_s",
        "_partitions",
        "_rest",
        "_timer",
    )

    def __init__(
        self,
        handler: Fetch,
        exchange: Exchange,
        reading: Reading,
        wait_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`reading` is what was there when it came: too little."""
        super().__init__(is_barrier=True)
        self._handler = handler
        self._exchange = exchange
        self._partitions = reading.partitions if exchange.session is None else []
        self._loop = loop
        self._timer = loop.call_later(wait_s, self.time_out)
        self._rest: asyncio.TimerHandle | None = None
        self._has_more = False  # a partition grew during a rest
        self._parked_s = handler.monotonic_s()
        for partition in self._partitions:
            partition.add_reader(self._wake)
        if exchange.session is not None:
            exchange.session.readers[self._wake] = None
            exchange.session.rest(reading.fetched)
        self.on_abandon(self._stop)

    def _wake(self) -> None:
        if self._rest is not None:
            self._has_more = True
            return
        self._end_wait()
        reading, session = self._handler.read(self._exchange), self._exchange.session
        is_closed = session is not None and session.is_closed
        if is_closed or self._handler.is_enough(self._exchange.request, reading):
            self._finish(reading)
            return
        self._parked_s = self._handler.monotonic_s()
        if session is not None:
            session.rest(reading.fetched)
        if reading.has_records and len(reading.partitions) >= _COSTLY_PARTITIONS:
            # Every append wakes this fetch, which reads all partitions again: rest a while.
            self._has_more = False
            rest_s = len(reading.partitions) * _REST_S_PER_PARTITION
            self._rest = self._loop.call_later(rest_s, self._end_rest)

    def _end_rest(self) -> None:
        self._rest = None
        if self._has_more:
            self._wake()

    def time_out(self) -> None:
        """Respond with the data that there is, however little."""
        self._end_wait()
        self._finish(self._handler.read(self._exchange))

    def _end_wait(self) -> None:
        """The time of the wait does not count: the client asked for it."""
        self.begun_s += self._handler.monotonic_s() - self._parked_s

    def _finish(self, reading: Reading) -> None:
        self._stop()
        self.complete(self._handler.respond(self._exchange, reading))

    def _stop(self) -> None:
        self._handler.note_done(self)
        for partition in self._partitions:
            partition.remove_reader(self._wake)
        self._partitions.clear()
        if self._exchange.session is not None:
            self._exchange.session.readers.pop(self._wake, None)
        self._timer.cancel()
        if self._rest is not None:
            self._rest.cancel()


def _read_all(
    locate: Locate, wanted: Wanted, reads: Reads, bytes_max: int, total_bytes: int = 0
) -> Reading:
    """Read partitions in the order of the request; the first one with data gives at least one
    batch. `total_bytes` were read before, from other partitions of the same request."""
    left_bytes = bytes_max - total_bytes
    is_urgent = has_records = False
    fetched: Fetched = []
    located: list[Readable] = []
    for key, partitions in wanted:
        results = []
        for want in partitions:
            try:
                partition = locate(key, want.partition)
                located.append(partition)
                result = reads.read(partition, want, left_bytes, at_least_one=not total_bytes)
            except ApiError as refused:
                result = FetchedPartition(want.partition, refused.code)
                is_urgent = True
            if result.records is not None:
                has_records = True
                if not result.is_skip:
                    total_bytes += result.records.size_bytes
                    left_bytes -= result.records.size_bytes
            is_urgent = is_urgent or result.is_urgent
            results.append(result)
        fetched.append((key, results))
    return Reading(fetched, total_bytes, is_urgent, has_records, located)


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
