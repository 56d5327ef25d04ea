"""The records that are due first, selected from a table by ticket, some rows at a time."""

from typing import Final

from ottla.queues.pending_records import DuePosition, PendingRecords

BEFORE_ALL: Final = (-1, -1)


class FirstDue:
    """The first `count` records behind a position. Call `look` until it returns False.

    A pass over the table keeps at most twice `count` rows, whatever the table holds. What changes
    in rows that were looked at is not seen.
    """

    def __init__(
        self,
        pending: PendingRecords,
        *,
        after: DuePosition,
        before_ms: int,
        count: int,
        schedules_only: bool,
    ) -> None:
        assert count > 0, "a page has room for a record"
        self._pending = pending
        self._after = after
        self._before: DuePosition = (before_ms, -1)
        self._count = count
        self._schedules_only = schedules_only
        self._kept: list[DuePosition] = []
        self._ticket = -1  # behind which rows are looked at next

    def look(self) -> bool:
        """Look at some more rows; returns whether there are more."""
        found, ticket = self._pending.due_between(
            self._after, self._before, self._ticket, schedules_only=self._schedules_only
        )
        self._kept += found
        if len(self._kept) > 2 * self._count:
            self._trim()
        if ticket is None:
            return False
        self._ticket = ticket
        return True

    def found(self) -> list[DuePosition]:
        """The records found, in the order of due times."""
        self._trim()
        return self._kept

    def _trim(self) -> None:
        self._kept.sort()
        if len(self._kept) > self._count:
            del self._kept[self._count :]
            self._before = self._kept[-1]
