"""What a handler gives back: bytes now, nothing at all, or a promise that keeps its place."""

from collections.abc import Callable

from ottla.storage.log_read import FileRange

Part = bytes | FileRange
Parts = bytes | list[Part]


class Pending:
    """An answer that is not there yet. Its place in the connection's order is kept.

    A barrier also holds back the requests behind it on its connection, as Kafka does; a
    waiting produce does not, so that the batches of one producer share one fsync.
    """

    __slots__ = ("_abandoned", "_notify", "is_barrier", "parts")

    def __init__(self, *, is_barrier: bool) -> None:
        self.is_barrier = is_barrier
        self.parts: Parts | None = None
        self._notify: Callable[[], None] | None = None
        self._abandoned: Callable[[], None] | None = None

    def complete(self, parts: Parts) -> None:
        """The answer is there; an empty one means that the client gets none."""
        assert self.parts is None, "an answer is given once"
        self.parts = parts
        self._abandoned = None
        if self._notify is not None:
            self._notify()

    def on_complete(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def on_abandon(self, abandoned: Callable[[], None]) -> None:
        """Called when the client has gone before its answer came."""
        self._abandoned = abandoned

    def abandon(self) -> None:
        self._notify = None
        if self._abandoned is not None:
            self._abandoned()
            self._abandoned = None


Answer = bytes | list[Part] | Pending | None
