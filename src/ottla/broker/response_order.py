"""The order of responses: that of their requests, however long each of them takes."""

from collections import deque
from typing import Final

from ottla.broker.pending import Parts, Pending
from ottla.broker.writer import Writer

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

    def release(self, writer: Writer) -> None:
        """Write the responses that are complete, up to the first that is not."""
        while self:
            head = self[0]
            parts = head.parts if isinstance(head, Pending) else head
            if parts is None:
                return
            if isinstance(parts, bytes):  # without a call, as nearly always
                writer.queue(parts)
            else:
                write_parts(parts, writer)
            self.popleft()

    def abandon(self) -> None:
        """The client has gone: whatever works on its responses may stop."""
        for response in self:
            if isinstance(response, Pending):
                response.abandon()
        self.clear()


def write_parts(parts: Parts, writer: Writer) -> None:
    for part in (parts,) if isinstance(parts, bytes) else parts:
        writer.queue(part)
