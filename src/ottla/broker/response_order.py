"""The order of responses: that of their requests, however long each of them takes."""

from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.broker.pending import Part, Parts, Pending

_PENDING_MAX: Final = 256  # unanswered produce requests; beyond, reading stops


class ResponseOrder(deque[Pending | Parts]):
    """Responses of one connection that may not leave yet; a deque, for `if order:` is hot."""

    __slots__ = ()

    @property
    def is_blocked(self) -> bool:
        """True if no further request may be taken: behind a barrier, or too many are pending."""
        if not self:
            return False
        last = self[-1]
        if isinstance(last, Pending) and last.is_barrier and last.parts is None:
            return True
        return len(self) >= _PENDING_MAX

    def release(self, write: Callable[[Part], None]) -> None:
        """Write the responses that are complete, up to the first that is not."""
        while self:
            head = self[0]
            parts = head.parts if isinstance(head, Pending) else head
            if parts is None:
                return
            write_parts(parts, write)
            self.popleft()

    def abandon(self) -> None:
        """The client has gone: whatever works on its responses may stop."""
        for response in self:
            if isinstance(response, Pending):
                response.abandon()
        self.clear()


def write_parts(parts: Parts, write: Callable[[Part], None]) -> None:
    if isinstance(parts, bytes):
        write(parts)
    else:
        for part in parts:
            write(part)
