"""Metrics of a broker, and the pages /metrics, /healthz and /readyz."""

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple

from ottla import __version__
from ottla.broker.dispatch import Dispatcher
from ottla.broker.server import Server
from ottla.broker.services import Services
from ottla.cluster.measured_store import MeasuredStore
from ottla.coordinator.runtime.internal_topics import INTERNAL_TOPICS
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import Endpoint, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas
from ottla.storage.files import DiskSpace, open_file_count
from ottla.storage.flusher import Flusher
from ottla.telemetry import AnyMetric, HistogramMetric, Metric, MetricKind, exposition

_REQUEST_BYTES_MAX: Final = 8192
_REQUEST_TIMEOUT_S: Final = 10
_REQUESTS_MAX: Final = 16  # at a time: each takes a descriptor
_ALL_PARTITIONS: Final = "all"  # the label of the partitions of an internal topic together
_Samples = list[tuple[tuple[str, ...], float]]
_GAUGE: Final = MetricKind.GAUGE
_COUNTER: Final = MetricKind.COUNTER


def collect(
    server: Server,
    dispatcher: Dispatcher,
    services: Services,
    replicas: Replicas,
    flusher: Flusher,
    store: MeasuredStore,
) -> Iterable[AnyMetric]:
    """All metrics of this broker."""
    yield _build_info()
    yield from _store(store, services.state.lease_left_s)
    yield from _connections(server)
    yield from _requests(dispatcher)
    yield from _data_path(dispatcher)
    yield from _topics(dispatcher, replicas)
    yield from _log_dir(replicas, flusher)
    yield from _scrubbing(replicas)
    is_folded = not services.settings.broker.internal_partition_metrics
    yield from _compaction(replicas, is_folded=is_folded)
    yield from _partitions(replicas, is_folded=is_folded)
    yield from _replication(services, replicas)
    yield from services.collect_groups()
    yield from services.collect_share_groups()
    yield from services.collect_waiting()


def _replication(services: Services, replicas: Replicas) -> Iterable[Metric]:
    from ottla.broker.replication_metrics import collect_replication  # noqa: PLC0415

    return collect_replication(
        replicas, services.state.image, services.node_id, services.clock.monotonic_s()
    )


def _build_info() -> Metric:
    labels = (__version__, platform.python_version())
    names = ("version", "python_version")
    return Metric("ottla_build_info", _GAUGE, "1; its labels are versions.", names, [(labels, 1)])


def _store(store: MeasuredStore, lease_left_s: float) -> Iterable[AnyMetric]:
    yield _one(
        "ottla_store_up",
        _GAUGE,
        "1 if the coordination store responded to the last call, 0 if it did not.",
        int(store.is_up),
    )
    yield HistogramMetric(
        "ottla_store_call_duration_seconds",
        "Time of a call to the coordination store.",
        (),
        [((), store.durations)],
    )
    yield _one(
        "ottla_lease_left_seconds",
        _GAUGE,
        "Time for which this broker is certain to stay registered without another renewal.",
        lease_left_s,
    )


def _connections(server: Server) -> Iterable[Metric]:
    yield _one("ottla_connections", _GAUGE, "Open connections.", len(server.connections))
    yield _one("ottla_connections_accepted", _COUNTER, "Connections taken.", server.accepted_count)
    yield _one(
        "ottla_connections_refused", _COUNTER, "Connections over a limit.", server.refused_count
    )
    yield _one(
        "ottla_protocol_violations",
        _COUNTER,
        "Connections closed for what they sent.",
        server.violation_count,
    )
    yield _one(
        "ottla_request_buffer_bytes",
        _GAUGE,
        "Memory held by requests that are arriving or waiting.",
        server.budget.used_bytes,
    )


def _requests(dispatcher: Dispatcher) -> Iterable[AnyMetric]:
    yield Metric(
        "ottla_requests",
        _COUNTER,
        "Requests taken, by API.",
        ("api",),
        [
            ((ApiKey(key).name.lower(),), count)
            for key, count in sorted(dispatcher.request_counts.items())
        ],
    )
    yield Metric(
        "ottla_requests_failed",
        _COUNTER,
        "Requests that met a defect and cost their client the connection, by API.",
        ("api",),
        [
            ((ApiKey(key).name.lower(),), dispatcher.failed_counts[key])
            for key in sorted(dispatcher.request_counts)
        ],
    )

    yield HistogramMetric(
        "ottla_request_duration_seconds",
        "Time from when a request is taken until its response is complete, by API; of a fetch"
        " without the time that it waits for data.",
        ("api",),
        [
            ((ApiKey(key).name.lower(),), latency)
            for key, latency in sorted(dispatcher.latencies.items())
            if dispatcher.request_counts[key]
        ],
    )
    yield Metric(
        "ottla_response_errors",
        _COUNTER,
        "Error codes in responses, by API and Kafka's name of the error.",
        ("api", "error"),
        [
            ((ApiKey(key).name.lower(), ErrorCode(code).name), count)
            for (key, code), count in sorted(_errors(dispatcher).items())
        ],
    )


def _errors(dispatcher: Dispatcher) -> dict[tuple[int, int], int]:
    produce, fetch = dispatcher.produce.error_counts, dispatcher.fetch.error_counts
    return {
        **dispatcher.error_counts,
        **{(ApiKey.PRODUCE, code): count for code, count in produce.items()},
        **{(ApiKey.FETCH, code): count for code, count in fetch.items()},
    }


def _data_path(dispatcher: Dispatcher) -> Iterable[Metric]:
    produce, fetch = dispatcher.produce, dispatcher.fetch
    produced, fetched = produce.traffic.sum(), fetch.traffic.sum()
    yield _one("ottla_produce_bytes", _COUNTER, "Bytes appended.", produced.size_bytes)
    yield _one("ottla_produce_batches", _COUNTER, "Batches appended.", produced.batches)
    yield _one("ottla_produce_records", _COUNTER, "Records appended.", produced.records)
    yield _one(
        "ottla_produce_waiting", _GAUGE, "Produce requests not yet settled.", produce.waiting_count
    )
    yield _one("ottla_fetch_bytes", _COUNTER, "Bytes of batches sent.", fetched.size_bytes)
    yield _one("ottla_fetch_waiting", _GAUGE, "Fetches that wait for data.", fetch.waiting_count)
    yield _one("ottla_fetch_sessions", _GAUGE, "Fetch sessions kept.", len(fetch.sessions))
    yield _one(
        "ottla_fetch_sessions_continued",
        _COUNTER,
        "Fetches that named only what changed.",
        fetch.sessions.continued_count,
    )


def _topics(dispatcher: Dispatcher, replicas: Replicas) -> Iterable[Metric]:
    produced = dispatcher.produce.traffic.by_topic(replicas.topic_names)
    fetched = dispatcher.fetch.traffic.by_topic(replicas.topic_names)
    counters = [
        ("produce_bytes", "Bytes appended, by topic.", produced, attrgetter("size_bytes")),
        ("produce_batches", "Batches appended, by topic.", produced, attrgetter("batches")),
        ("produce_records", "Records appended, by topic.", produced, attrgetter("records")),
        ("fetch_bytes", "Bytes of batches sent, by topic.", fetched, attrgetter("size_bytes")),
    ]
    for name, doc, by_topic, number in counters:
        samples: _Samples = [
            ((topic,), float(number(traffic))) for topic, traffic in by_topic.items()
        ]
        yield Metric(f"ottla_topic_{name}", _COUNTER, doc, ("topic",), samples)


def _log_dir(replicas: Replicas, flusher: Flusher) -> Iterable[AnyMetric]:
    yield _one(
        "ottla_log_dir_offline",
        _GAUGE,
        "1 when the data directory has failed.",
        int(replicas.is_offline),
    )
    yield _one(
        "ottla_sync_unfinished_seconds",
        _GAUGE,
        "Age of the oldest sync that has not finished, 0 when there is none.",
        flusher.unfinished_s,
    )
    yield HistogramMetric(
        "ottla_fsync_duration_seconds",
        "Time of a group commit: the syncs of all logs that waited together.",
        (),
        [((), flusher.durations)],
    )
    yield from _disk_space(replicas)
    yield _one(
        "ottla_log_strays",
        _GAUGE,
        "Logs set aside because the coordination store does not know them.",
        replicas.stray_count,
    )
    yield _one(
        "ottla_open_files",
        _GAUGE,
        "Files of segments that are open; their share of the descriptors is the most there can be.",
        open_file_count(),
    )


def _disk_space(replicas: Replicas) -> Iterable[Metric]:
    space: DiskSpace | None = None
    with suppress(OSError):  # the disk has failed: no sample is better than a wrong one
        space = replicas.disk_space()
    free: _Samples = [] if space is None else [((), space.usable_bytes)]
    capacity: _Samples = [] if space is None else [((), space.total_bytes)]
    yield Metric(
        "ottla_log_dir_free_bytes",
        _GAUGE,
        "Bytes that are free for this broker on the file system of its data.",
        (),
        free,
    )
    yield Metric(
        "ottla_log_dir_capacity_bytes",
        _GAUGE,
        "Bytes of the file system of its data.",
        (),
        capacity,
    )


def _scrubbing(replicas: Replicas) -> Iterable[Metric]:
    scrubber = replicas.chores.scrubber
    counters = [
        ("rounds", "Times that all old segments have been read again.", scrubber.round_count),
        ("segments", "Segments read again to the end.", scrubber.segment_count),
        ("bytes", "Bytes read again.", scrubber.read_bytes),
        ("failures", "Segments that could not be read again.", scrubber.failure_count),
        ("damages", "Ranges that were found to be no longer intact.", scrubber.damage_count),
    ]
    for name, doc, count in counters:
        yield _one(f"ottla_scrub_{name}", _COUNTER, doc, count)
    yield _one(
        "ottla_log_damaged_ranges",
        _GAUGE,
        "Ranges of offsets that are corrupt on disk and not served.",
        replicas.chores.damaged_range_count,
    )


def _labels(tp: TopicPartition, *, is_folded: bool) -> tuple[str, str]:
    """Topic and partition; those of an internal topic have one label if they are folded."""
    is_one = not is_folded or tp.topic not in INTERNAL_TOPICS
    return tp.topic, str(tp.partition) if is_one else _ALL_PARTITIONS


def _compaction(replicas: Replicas, *, is_folded: bool) -> Iterable[Metric]:
    cleaner, totals = replicas.chores.cleaner, replicas.chores.cleaner.totals
    counters = [
        ("passes", "Logs compacted from start to end.", cleaner.pass_count),
        ("failures", "Passes that were given up.", cleaner.failure_count),
        ("read_bytes", "Bytes of segments compacted.", totals.read_bytes),
        ("cleaned_bytes", "Bytes that compaction has written instead.", totals.written_bytes),
        ("records_kept", "Records that are the last of their key.", totals.kept_records),
        ("records_dropped", "Records that were not, or void.", totals.dropped_records),
        ("tombstones_dropped", "Of these, tombstones past their time.", totals.dropped_tombstones),
    ]
    for name, doc, count in counters:
        yield _one(f"ottla_compaction_{name}", _COUNTER, doc, count)
    dirty = Counter[tuple[str, ...]]()
    for log, _ in sorted(replicas.chores.compacted(), key=lambda item: item[0].tp):
        dirty[_labels(log.tp, is_folded=is_folded)] += log.cleaning.dirty_bytes
    yield Metric(
        "ottla_compaction_dirty_bytes",
        _GAUGE,
        "Bytes of sealed segments not compacted yet.",
        ("topic", "partition"),
        [(labels, float(size_bytes)) for labels, size_bytes in dirty.items()],
    )


class _Edges(NamedTuple):
    """Gauges of a partition, or of several together; the last two only of those led here."""

    start: int
    end: int
    size_bytes: int
    high_watermark: int | None
    isr_size: int | None

    def merged(self, other: "_Edges") -> "_Edges":
        """Of both: sums, and the smallest in-sync set."""
        marks = [one.high_watermark for one in (self, other) if one.high_watermark is not None]
        sizes = [one.isr_size for one in (self, other) if one.isr_size is not None]
        return _Edges(
            self.start + other.start,
            self.end + other.end,
            self.size_bytes + other.size_bytes,
            sum(marks) if marks else None,
            min(sizes, default=None),
        )


def _partitions(replicas: Replicas, *, is_folded: bool) -> Iterable[Metric]:
    rows: dict[tuple[str, str], _Edges] = {}
    for tp, log in sorted(replicas.logs.items()):
        leader = replicas.leaders.get(tp)
        edges = _Edges(
            log.start_offset,
            log.end_offset,
            log.size_bytes,
            None if leader is None else leader.high_watermark,
            None if leader is None else len(leader.isr),
        )
        labels = _labels(tp, is_folded=is_folded)
        rows[labels] = rows[labels].merged(edges) if labels in rows else edges
    for name, doc, number in (
        ("log_start_offset", "First offset kept.", attrgetter("start")),
        ("log_end_offset", "Next offset to give.", attrgetter("end")),
        ("high_watermark", "First offset not committed.", attrgetter("high_watermark")),
        ("log_size_bytes", "Bytes on disk.", attrgetter("size_bytes")),
        ("in_sync_replicas", "Replicas in sync.", attrgetter("isr_size")),
    ):
        samples: _Samples = [
            (labels, float(number(edges)))
            for labels, edges in rows.items()
            if number(edges) is not None
        ]
        yield Metric(f"ottla_{name}", _GAUGE, doc, ("topic", "partition"), samples)


def _one(name: str, kind: MetricKind, doc: str, number: float) -> Metric:
    return Metric(name, kind, doc, (), [((), number)])


class MetricsPages:
    """GET /metrics, /healthz and /readyz; nothing else, one request a connection."""

    def __init__(
        self,
        collect_all: Callable[[], Iterable[AnyMetric]],
        obstacle: Callable[[], str | None],
        watch: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        """`obstacle` returns why the broker is not ready, or None; `watch` gets every task."""
        self._collect = collect_all
        self._obstacle = obstacle
        self._watch = watch
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listener: asyncio.Server | None = None

    async def listen(self, endpoint: Endpoint) -> Endpoint:
        try:
            self._listener = await asyncio.start_server(
                self._begin, endpoint.host, endpoint.port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as problem:
            raise UsageRefused(
                f"cannot serve metrics on {endpoint}: {problem.strerror or problem};"
                " choose another address with --metrics HOST:PORT"
            ) from problem
        return Endpoint(endpoint.host, self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _REQUESTS_MAX:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        self._watch(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, content_type, body = self._respond(head)
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                    b"Connection: close\r\n\r\n" % (status, content_type, len(body))
                )
                writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not an HTTP client, or it has gone
        finally:
            writer.close()

    def _respond(self, head: bytes) -> tuple[bytes, bytes, bytes]:
        match head.split(b" ", 2)[:2]:
            case [b"GET", b"/metrics"]:
                text = b"text/plain; version=0.0.4; charset=utf-8"
                return b"200 OK", text, exposition(self._collect(), with_process=True)
            case [b"GET", b"/healthz"]:
                return b"200 OK", b"text/plain", b"alive\n"
            case [b"GET", b"/readyz"]:
                return self._readiness()
            case _:
                return b"404 Not Found", b"text/plain", b"/metrics, /healthz, /readyz\n"

    def _readiness(self) -> tuple[bytes, bytes, bytes]:
        obstacle = self._obstacle()
        if obstacle is None:
            return b"200 OK", b"text/plain", b"ready\n"
        line = " ".join(obstacle.split())
        return b"503 Service Unavailable", b"text/plain", f"not ready: {line}\n".encode()
