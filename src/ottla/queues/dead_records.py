"""Records of a share partition that are dead and whose dead letters are not written yet.

One batch of dead letters is written at a time, by a producer id of the share partition. Before it
is sent, it is written down which records are in it, its sequence number and its destination; so
every repetition, after a crash or by a leader that has been replaced, is recognised by the
destination as the same batch.

    ARCHIVING ----------> ARCHIVING, sending ----------> ARCHIVED
               begin                             end
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.model import Offset
from ottla.queues.share_ranges import Range, Ranges
from ottla.queues.share_state import Cause, DeliveryState, Sender

_ARCHIVING: Final = DeliveryState.ARCHIVING
_ARCHIVED: Final = DeliveryState.ARCHIVED
_SEQUENCE_MASK: Final = 0x7FFF_FFFF


class DeadRecord(NamedTuple):
    """A record that gets a dead letter."""

    offset: Offset
    deliveries: int
    cause: Cause
    reason: str = ""  # of its rejection


class DeadRecords:
    """The archiving ranges of a share partition; `note` has a range written down as it is."""

    __slots__ = ("_note", "_ranges", "has_new_sender", "sender")

    def __init__(
        self, ranges: Ranges, sender: Sender | None, note: Callable[[Range], None]
    ) -> None:
        self._ranges = ranges
        self._note = note
        self.sender = sender
        self.has_new_sender = False  # since the last write

    @property
    def count(self) -> int:
        return self._ranges.count(_ARCHIVING)

    @property
    def is_sending(self) -> bool:
        return any(item.is_sending for item in self._ranges.archiving())

    def sending(self) -> list[DeadRecord]:
        """The records of the batch that is being written."""
        return self._records(is_sending=True, records_max=self.count)

    def next(self, records_max: int) -> list[DeadRecord]:
        """The first records that are not in a batch yet."""
        return self._records(is_sending=False, records_max=records_max)

    def _records(self, *, is_sending: bool, records_max: int) -> list[DeadRecord]:
        found: list[DeadRecord] = []
        for item in self._ranges.archiving():
            if item.is_sending is is_sending:
                end = min(item.end, item.start + records_max - len(found))
                found += [
                    DeadRecord(Offset(at), item.count, item.cause, item.reason)
                    for at in range(item.start, end)
                ]
        return found

    def add(self, item: Range, cause: Cause, reason: str = "") -> None:
        """A record has failed for the last time."""
        count = item.count
        self._ranges.change(item, _ARCHIVING, count)
        item.cause, item.reason = cause, reason
        self._note(item)

    def begin(self, offsets: Iterable[int], sender: Sender) -> None:
        """Put records into a batch; the sender has its sequence and its destination."""
        assert not self.is_sending, "one batch is written at a time"
        for offset in offsets:
            for item in self._ranges.within(offset, offset + 1):
                self._mark(item, is_sending=True)
        self._set_sender(sender)

    def replace_sender(self, sender: Sender) -> None:
        """Send the same batch as another producer: the last one's sequences are lost."""
        self._set_sender(sender)

    def give_up(self) -> None:
        """Take the records out of their batch: its destination does not exist any more."""
        for item in self._ranges.archiving():
            if item.is_sending:
                self._mark(item, is_sending=False)

    def end(self) -> int:
        """The batch is written; returns how many records it had."""
        assert self.sender is not None, "a batch was begun"
        items = [item for item in self._ranges.archiving() if item.is_sending]
        count = sum(item.size for item in items)
        self._archive(items)
        sequence = (self.sender.sequence + count) & _SEQUENCE_MASK
        self._set_sender(self.sender._replace(sequence=sequence))
        return count

    def drop(self, offsets: Iterable[int] | None = None) -> int:
        """Archive records without a dead letter, all that are in no batch by default."""
        if offsets is None:
            items = [item for item in self._ranges.archiving() if not item.is_sending]
        else:
            items = [i for at in offsets for i in self._ranges.within(at, at + 1)]
        self._archive(items)
        return sum(item.size for item in items)

    def _archive(self, items: Iterable[Range]) -> None:
        for item in items:
            assert item.state is _ARCHIVING, "only what is dead is archived here"
            self._ranges.change(item, _ARCHIVED, item.count)
            self._note(item)

    def _mark(self, item: Range, *, is_sending: bool) -> None:
        assert item.state is _ARCHIVING, "only what is dead gets a dead letter"
        count, cause, reason = item.count, item.cause, item.reason
        self._ranges.change(item, _ARCHIVING, count)
        item.cause, item.is_sending, item.reason = cause, is_sending, reason
        self._note(item)

    def _set_sender(self, sender: Sender) -> None:
        self.sender = sender
        self.has_new_sender = True
