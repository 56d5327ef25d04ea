"""The records that wait in a partition, as far as replication calls them."""

from typing import Protocol

from ottla.model import Offset, ProducerId, TimestampMs
from ottla.records.batch import Marker
from ottla.replication.waiters import Settled
from ottla.storage.log_append import Appended


class WaitingRecords(Protocol):
    """The records of a led partition that wait."""

    def append(self, batch: memoryview, now_ms: TimestampMs) -> Appended:
        """Append a producer's batch, in which records may wait."""
        ...

    def note_marker(self, marker: Marker, producer_id: ProducerId, end: Offset) -> None:
        """A transaction has ended, with a marker before `end`."""
        ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def waiting_bytes(self) -> int: ...

    def clear(self, below: Offset, done: Settled | None = None) -> Offset:
        """The offset below which nothing waits; it rises to `below` soon."""
        ...

    def clear_if_worth(self, below: Offset) -> Offset:
        """Like `clear`, if it frees more than it takes."""
        ...

    def close(self) -> None:
        """The partition is no longer led here."""
        ...
