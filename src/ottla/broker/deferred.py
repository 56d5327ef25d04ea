"""Responses of a coordinator that are sent when its log has committed: no task, no future."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ottla.coordinator.runtime.coordinator import Coordinator
from ottla.coordinator.runtime.decision import A, RecordT, Ticket
from ottla.coordinator.runtime.shard import Decide, MachineT
from ottla.errors import ApiError

MessageT = TypeVar("MessageT")


class Deferred(Ticket[A], Generic[A, MessageT]):
    """A ticket that becomes a response message: `build` makes it of the coordinator's response,
    `refuse` of an error."""

    __slots__ = ("_build", "_on_message", "_refuse", "message")

    def __init__(
        self, build: Callable[[A], MessageT], refuse: Callable[[ApiError], MessageT]
    ) -> None:
        self._build = build
        self._refuse = refuse
        self._on_message: Callable[[MessageT], None] | None = None
        self.message: MessageT | None = None

    def deliver(self, value: A) -> None:
        self._complete(self._build(value))

    def fail(self, error: ApiError) -> None:
        self._complete(self._refuse(error))

    def on_message(self, on_message: Callable[[MessageT], None]) -> None:
        self._on_message = on_message

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
            return self._refuse(refused)
        return self if self.message is None else self.message

    def _complete(self, message: MessageT) -> None:
        assert self.message is None, "a ticket gets one response"
        self.message = message
        if self._on_message is not None:
            self._on_message(message)


AnyDeferred = Deferred[Any, Any]
