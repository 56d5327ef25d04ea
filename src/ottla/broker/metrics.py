"""Metrics of a broker, and the pages /metrics, /healthz and /readyz."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ottla.broker.dispatch import Dispatcher
from ottla.broker.server import Server
from ottla.broker.services import Services
from ottla.errors import UsageRefused
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas
from ottla.storage.files import open_file_count
from ottla.storage.flusher import Flusher
from ottla.telemetry import Metric, MetricKind, exposition

_REQUEST_BYTES_MAX: Final = 8192
_REQUEST_TIMEOUT_S: Final = 10
_REQUESTS_MAX: Final = 16  # at a time: each takes a descriptor
_GAUGE: Final = MetricKind.GAUGE
_COUNTER: Final = MetricKind.COUNTER


def collect(
    server: Server,
    dispatcher: Dispatcher,
    services: Services,
    replicas: Replicas,
    flusher: Flusher,
) -> Iterable[Metric]:
    """All metrics of this broker."""
    yield from _connections(server)
    yield from _requests(dispatcher)
    yield from _data_path(dispatcher)
    yield from _log_dir(replicas, flusher)
    yield from _scrubbing(replicas)
    yield from _compaction(replicas)
    yield from _partitions(replicas)
    yield from services.collect_groups()


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


def _requests(dispatcher: Dispatcher) -> Iterable[Metric]:
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


def _data_path(dispatcher: Dispatcher) -> Iterable[Metric]:
    produce, fetch = dispatcher.produce, dispatcher.fetch
    yield _one("ottla_produce_bytes", _COUNTER, "Bytes appended.", produce.bytes_count)
    yield _one("ottla_produce_batches", _COUNTER, "Batches appended.", produce.batches_count)
    yield _one(
        "ottla_produce_waiting", _GAUGE, "Produce requests not yet settled.", produce.waiting_count
    )
    yield _one("ottla_fetch_bytes", _COUNTER, "Bytes of batches sent.", fetch.bytes_count)
    yield _one("ottla_fetch_sessions", _GAUGE, "Fetch sessions kept.", len(fetch.sessions))
    yield _one(
        "ottla_fetch_sessions_continued",
        _COUNTER,
        "Fetches that named only what changed.",
        fetch.sessions.continued_count,
    )


def _log_dir(replicas: Replicas, flusher: Flusher) -> Iterable[Metric]:
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


def _compaction(replicas: Replicas) -> Iterable[Metric]:
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
    yield Metric(
        "ottla_compaction_dirty_bytes",
        _GAUGE,
        "Bytes of sealed segments not compacted yet.",
        ("topic", "partition"),
        [
            ((log.tp.topic, str(log.tp.partition)), log.cleaning.dirty_bytes)
            for log, _ in sorted(replicas.chores.compacted(), key=lambda item: item[0].tp)
        ],
    )


def _partitions(replicas: Replicas) -> Iterable[Metric]:
    marks: dict[str, list[tuple[tuple[str, ...], float]]] = {
        "start": [],
        "end": [],
        "watermark": [],
        "size": [],
        "isr": [],
    }
    for tp, log in sorted(replicas.logs.items()):
        labels = (tp.topic, str(tp.partition))
        marks["start"].append((labels, log.start_offset))
        marks["end"].append((labels, log.end_offset))
        marks["size"].append((labels, log.size_bytes))
        partition = replicas.leaders.get(tp)
        if partition is not None:
            marks["watermark"].append((labels, partition.high_watermark))
            marks["isr"].append((labels, len(partition.isr)))
    names = ("topic", "partition")
    yield Metric("ottla_log_start_offset", _GAUGE, "First offset kept.", names, marks["start"])
    yield Metric("ottla_log_end_offset", _GAUGE, "Next offset to give.", names, marks["end"])
    yield Metric(
        "ottla_high_watermark", _GAUGE, "First offset not committed.", names, marks["watermark"]
    )
    yield Metric("ottla_log_size_bytes", _GAUGE, "Bytes on disk.", names, marks["size"])
    yield Metric("ottla_in_sync_replicas", _GAUGE, "Replicas in sync.", names, marks["isr"])


def _one(name: str, kind: MetricKind, doc: str, number: float) -> Metric:
    return Metric(name, kind, doc, (), [((), number)])


class MetricsPages:
    """GET /metrics, /healthz and /readyz; nothing else, one request a connection."""

    def __init__(
        self,
        collect_all: Callable[[], Iterable[Metric]],
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
                return b"200 OK", text, exposition(self._collect())
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
