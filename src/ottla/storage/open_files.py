"""A limit on open segment files: a share of the process's descriptors.

A log opens its files when it reads or writes them and leaves them open, for it is likely to do so
again. When the share is taken, the logs that have had files open for the longest time close what
they can. A file that is not on disk yet stays open: closed, it would not report a write that
fails afterwards. If nothing else is left, everything is brought to disk, and then closed.
"""

import sys
from collections.abc import Callable
from typing import Final, Protocol
from weakref import ref

from ottla.storage.files import open_file_count

_ASKED_MAX: Final = 64  # logs that are asked to close theirs for the sake of one


class Holder(Protocol):
    """A log, as far as it holds files open. On its owner's thread."""

    def release_files(self) -> bool:
        """Close what is on disk and not in use; False if anything stays open."""
        ...


def _do_nothing() -> None:
    return


class OpenFiles:
    """The logs of one directory that hold files open, in the order in which they opened them."""

    def __init__(
        self, count_max: int = sys.maxsize, flush_all: Callable[[], None] = _do_nothing
    ) -> None:
        """`flush_all` brings every log to disk."""
        self._flush_all = flush_all
        self._count_max = count_max
        self._held_max = count_max - count_max // 8  # the rest is for what is being sent
        self._holders: dict[Holder, None] = {}

    @property
    def is_full(self) -> bool:
        """True when a caller that can do without an open file should."""
        return open_file_count() >= self._count_max

    def admit(self, holder: "ref[Holder]") -> None:
        """Make room for a file that is about to be opened by a holder, if there still is one.

        It is not held itself: who holds the log's files must not hold the log, or they would stay
        open after it was deleted, until a search for cycles.
        """
        self.make_room()
        if (found := holder()) is not None:
            self.note(found)

    def note(self, holder: Holder) -> None:
        """The holder has a file open."""
        self._holders[holder] = None

    def forget(self, holder: Holder) -> None:
        self._holders.pop(holder, None)

    def make_room(self) -> None:
        """Before a file is opened: have others close theirs if the share is taken."""
        if open_file_count() >= self._held_max and not self._release():
            self._flush_all()
            self._release()

    def _release(self) -> bool:
        """Close files, those that were opened first before others; True when there is room."""
        for _ in range(min(_ASKED_MAX, len(self._holders))):
            holder = next(iter(self._holders))
            del self._holders[holder]
            if not holder.release_files():
                self._holders[holder] = None
            if open_file_count() < self._held_max:
                return True
        return False
