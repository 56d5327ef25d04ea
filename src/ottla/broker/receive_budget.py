"""Memory for requests that are arriving or waiting: one budget for all connections."""

from collections import deque
from typing import Final, Protocol

from ottla.settings import Settings


class BudgetWaiter(Protocol):
    """A connection that receives a large request."""

    def note_budget(self) -> None:
        """There is memory again for the request that this connection is receiving."""
        ...


class BufferPool:
    """Large receive buffers, reused: a fresh one costs page faults for every megabyte."""

    _KEPT_BYTES_MAX: Final = 32 << 20
    _POOLED_BYTES_MIN: Final = 64 * 1024

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; what it held before is still in it."""
        if size >= self._POOLED_BYTES_MIN:
            size = -(-size // self._POOLED_BYTES_MIN) * self._POOLED_BYTES_MIN
        free = self._free.get(size)
        if free:
            self._kept_bytes -= size
            return free.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        size = len(buffer)
        if size >= self._POOLED_BYTES_MIN and self._kept_bytes + size <= self._KEPT_BYTES_MAX:
            self._kept_bytes += size
            self._free.setdefault(size, []).append(buffer)


class ReceiveBudget:
    """Counts the bytes of unfinished and waiting requests against `queued.max.request.bytes`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.used_bytes = 0
        self.pool = BufferPool()
        self._waiting: deque[BudgetWaiter] = deque()
        self._exceeding: BudgetWaiter | None = None

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self._settings.broker.inflight_bytes_max

    def add(self, delta_bytes: int) -> None:
        """Count bytes, or give them back; memory that is free again goes to who waits."""
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, "more bytes were given back than were taken"
        while self._waiting and not self.is_exceeded:
            self._waiting.popleft().note_budget()

    def must_wait(self, receiver: BudgetWaiter) -> bool:
        """True if a large request has to wait for memory; `note_budget` ends the wait.

        One request at a time may exceed the budget. If all had to wait, none would be finished,
        and no memory would ever come back.
        """
        if not self.is_exceeded:
            return False
        if self._exceeding is None or self._exceeding is receiver:
            self._exceeding = receiver
            return False
        self._waiting.append(receiver)
        return True

    def is_waiting(self, receiver: BudgetWaiter) -> bool:
        return bool(self._waiting) and receiver in self._waiting

    def finish(self, receiver: BudgetWaiter) -> None:
        """A request has arrived as a whole, or never will: another one may exceed the budget."""
        if self._exceeding is receiver:
            self._exceeding = None
            if self._waiting:
                self._exceeding = self._waiting.popleft()
                self._exceeding.note_budget()

    def forget(self, receiver: BudgetWaiter) -> None:
        """A connection is lost."""
        if receiver in self._waiting:
            self._waiting.remove(receiver)
        self.finish(receiver)
