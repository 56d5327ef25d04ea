"""Responses: bytes that leave now, or a pending response that keeps its place in the order."""

from collections.abc import Callable

from ottla.broker.latency import Latency
from ottla.storage.log_read import FileRange

Part = bytes | FileRange
Parts = bytes | list[Part]


class Pending:
    """A response that does not exist yet. Its place in the connection's order is kept.

    A barrier also holds back the requests behind it on its connection, as Kafka does; a
    waiting produce does not, so that the batches of one producer share one fsync.
    """

    __slots__ = ("_latency", "_on_abandon", "_on_complete", "begun_s", "is_barrier", "parts")

    def __init__(self, *, is_barrier: bool) -> None:
        self.is_barrier = is_barrier
        self.parts: Parts | None = None
        self.begun_s = 0.0
        self._latency: Latency | None = None
        self._on_complete: Callable[[], None] | None = None
        self._on_abandon: Callable[[], None] | None = None

    def complete(self, parts: Parts) -> None:
        """Give it its bytes; none at all mean that the client gets no response."""
        assert self.parts is None, "a response completes once"
        self.parts = parts
        self._on_abandon = None
        if self._latency is not None:
            self._latency.end(self.begun_s)
        if self._on_complete is not None:
            self._on_complete()

    def time(self, latency: Latency, begun_s: float) -> None:
        """Have `latency` note how long the response took, when it is complete."""
        self._latency = latency
        self.begun_s = begun_s

    def on_complete(self, notify: Callable[[], None]) -> None:
        self._on_complete = notify

    def on_abandon(self, abandoned: Callable[[], None]) -> None:
        """Called when the client disconnects before its response is complete."""
        self._on_abandon = abandoned

    def abandon(self) -> None:
        self._on_complete = None
        if self._on_abandon is not None:
            self._on_abandon()
            self._on_abandon = None


Response = bytes | list[Part] | Pending | None  # None: the request has no response
