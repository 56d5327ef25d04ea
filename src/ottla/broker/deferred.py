"""Responses of a coordinator that are sent when its log has committed: no task, no future."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.decision import A, RecordT, Ticket
from ottla.coordinator.runtime.shard import Decide, MachineT
from ottla.errors import ApiError

MessageT = TypeVar("MessageT")


class Deferred(Ticket[A], Generic[A, MessageT]):
    """A ticket that becomes a response message: `build` makes it of the coordinator's response,
    `refuse` of an error.

    Neither is called by the shard that delivers: a mistake in one of them must cost one
    connection, and not the other responses of the same commit.
    """

    __slots__ = ("_error", "_on_ready", "_values", "is_ready")

    is_barrier: ClassVar[bool] = True  # holds back the requests behind it on its connection

    def __init__(self) -> None:
        self._values: list[A] = []  # at most one; None may be a value
        self._error: ApiError | None = None
        self._on_ready: Callable[[], None] | None = None
        self.is_ready = False

    @abstractmethod
    def build(self, value: A) -> MessageT: ...

    @abstractmethod
    def refuse(self, error: ApiError) -> MessageT: ...

    def deliver(self, value: A) -> None:
        assert not self.is_ready, "a ticket gets one response"
        self._values.append(value)
        self.is_ready = True
        if self._on_ready is not None:
            self._on_ready()

    def fail(self, error: ApiError) -> None:
        assert not self.is_ready, "a ticket gets one response"
        self._error = error
        self.is_ready = True
        if self._on_ready is not None:
            self._on_ready()

    def message(self) -> MessageT:
        """The response message, once it is ready."""
        if self._error is not None:
            return self.refuse(self._error)
        return self.build(self._values[0])

    def on_ready(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready

    def submit(
        self,
        coordinator: Coordinator[MachineT, RecordT],
        key: str,
        decide: Decide[MachineT, A, RecordT],
    ) -> "MessageT | Deferred[A, MessageT]":
        """Ask the coordinator: returns the message, or itself if that has to wait for the log."""
        try:
            coordinator.submit(key, self, decide)
        except ApiError as refused:
            return self.refuse(refused)
        return self.message() if self.is_ready else self


AnyDeferred = Deferred[Any, Any]
