"""Lists records that wait in a partition led here: pages of bounded size, made in slices."""

import base64
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from ottla.broker.services import Services
from ottla.broker.slices import Pace
from ottla.broker.waiting_contents import WaitingContents
from ottla.broker.waiting_partition import WaitingPartition
from ottla.errors import InvalidRequest, LeaderNotAvailable, NotLeader
from ottla.protocol.messages.admin import Json
from ottla.queues.first_due import BEFORE_ALL, FirstDue
from ottla.queues.pending_records import DuePosition, Waiting
from ottla.queues.waiting_copies import Content
from ottla.queues.waiting_facts import NO_SCHEDULE
from ottla.queues.waiting_query import WaitingQuery
from ottla.records.hidden_records import CRON, TIMEZONE

PAGE_BYTES: Final = 4 << 20  # of records in one response; the first may exceed it
READS_MAX: Final = 10_000  # records that are read for one response in search of a key
_LOOK_UNITS: Final = 250  # for a look of `FirstDue` or at ten thousand rows, a millisecond or two
_READ_UNITS: Final = 2
_SIZES_PER_UNIT: Final = 4
_BYTES_PER_UNIT: Final = 2048  # of batches that are opened
_ANY_OFFSET: Final = 2**63 - 1
_PORTION: Final = 100


async def list_waiting(services: Services, body: dict[str, Json]) -> dict[str, Json]:
    """The query `waiting.list`: counts of a partition, and some of what waits in it."""
    query = WaitingQuery.read(body)
    partition = services.replicas.locate(query.tp.topic, query.tp.partition)
    waiting = partition.waiting
    if not isinstance(waiting, WaitingPartition):
        raise InvalidRequest(
            "its records cannot wait: `ottla config set topic"
            f" {query.tp.topic} delay.enable=true` enables it"
        )
    if not waiting.is_loaded:
        raise LeaderNotAvailable(f"{query.tp}: what waits is being read, try again")
    return await _Page(waiting, query).make()


class _Page:
    """A response in the making."""

    def __init__(self, waiting: WaitingPartition, query: WaitingQuery) -> None:
        self._waiting = waiting
        self._query = query
        self._pace = Pace()
        self._contents = WaitingContents(waiting.partition.log)  # those of releases stay open
        self._opened_bytes = 0
        self._rows: list[dict[str, Json]] = []
        self._bytes = 0

    async def make(self) -> dict[str, Json]:
        query = self._query
        after: list[Json] | None = None
        if query.tickets is not None:
            await self._read_tickets(query.tickets)
        elif not query.limit:
            pass  # the counts alone
        elif query.key is not None:
            after = await self._search(query.key)
        else:
            after = await self._read_first()
        pending = self._waiting.pending
        return {
            "is_enabled": self._waiting.partition.log.config.delay_enable,
            "waiting": pending.count,
            "schedules": pending.schedule_count,
            "undecided": pending.undecided_count,
            "rows": list[Json](self._rows),
            "after": after,
        }

    async def _read_tickets(self, tickets: Iterable[int]) -> None:
        pending = self._waiting.pending
        for ticket in tickets:
            following = pending.next_of(ticket)
            await self._add(ticket if following is None else following)

    async def _read_first(self) -> list[Json] | None:
        """Add what is due first, in this order; returns where to go on."""
        query = self._query
        after = BEFORE_ALL if query.after is None else (query.after[0], query.after[1])
        first = FirstDue(
            self._waiting.pending,
            after=after,
            before_ms=query.due_before_ms,
            count=query.limit,
            schedules_only=query.schedules_only,
            taken=[one.ticket for one in self._waiting.stuck],
        )
        has_more = True
        while has_more:
            has_more = first.look()
            await self._spend(_LOOK_UNITS)
        found = first.found()
        shown = self._that_fit(found)
        await self._spend(len(found) // _SIZES_PER_UNIT)
        # In the order of tickets each batch is opened once, however far apart its records are due.
        for ticket in sorted(ticket for _, ticket in shown):
            await self._add(ticket)
        by_ticket = {row["ticket"]: row for row in self._rows}
        self._rows = [by_ticket[ticket] for _, ticket in shown if ticket in by_ticket]
        is_all = len(shown) == len(found) < query.limit
        return None if is_all else list(shown[-1])

    def _that_fit(self, found: list[DuePosition]) -> list[DuePosition]:
        """The first positions whose records are together not larger than a page, at least one."""
        size_of = self._waiting.pending.size_of
        sizes = accumulate(size_of(ticket) for _, ticket in found)
        return [
            position
            for position, size_bytes in zip(found, sizes, strict=True)
            if position is found[0] or size_bytes <= PAGE_BYTES
        ]

    async def _search(self, key: bytes) -> list[Json] | None:
        """Add records with a key in the order of tickets; returns where to go on."""
        query, read = self._query, 0
        after: int | None = -1 if query.after is None else query.after[0]
        while after is not None:
            found, following = self._waiting.pending.below(_ANY_OFFSET, after, _PORTION)
            await self._spend(_LOOK_UNITS if len(found) < _PORTION else 0)
            for one in found:
                after = one.ticket
                if one.due_ms >= query.due_before_ms:
                    continue
                if query.schedules_only and one.schedule == NO_SCHEDULE:
                    continue
                read += 1
                await self._add(one.ticket, key)
                is_full = len(self._rows) >= query.limit or self._bytes >= PAGE_BYTES
                if is_full or read >= READS_MAX:
                    return [after]
            after = following
        return None

    async def _add(self, ticket: int, key: bytes | None = None) -> None:
        """Add a record, unless it waits no more or has another key than this."""
        one = self._waiting.pending.find(ticket)
        if one is None:
            return
        if not self._contents.is_open(one):
            await self._pace.begin_slice()
            self._check_leads()
            one = self._waiting.pending.find(ticket)  # it may have ended meanwhile
            if one is None:
                return
        content = self._contents.read(one) if key is None else self._contents.read_with(one, key)
        if content is not None or key is None:
            self._rows.append(self._row(one, content))
        opened = self._contents.opened_bytes - self._opened_bytes
        self._opened_bytes += opened
        await self._spend(_READ_UNITS + opened // _BYTES_PER_UNIT)

    def _row(self, one: Waiting, content: Content | None) -> dict[str, Json]:
        size_bytes = self._waiting.pending.size_of(one.ticket)
        self._bytes += size_bytes
        row: dict[str, Json] = {
            "ticket": one.ticket,
            "due_ms": one.due_ms,
            "size_bytes": size_bytes,
            "schedule": None if one.schedule == NO_SCHEDULE else one.schedule,
            "key": None,
            "is_readable": content is not None,
        }
        if content is not None:
            found = content[0]
            row["key"] = None if found.key is None else base64.b64encode(found.key).decode()
            for name, value in found.headers if one.schedule != NO_SCHEDULE else ():
                if name in {CRON, TIMEZONE}:
                    row[name.removeprefix("ottla.")] = (value or b"").decode(errors="replace")
        return row

    async def _spend(self, units: int) -> None:
        await self._pace.spend(units)
        self._check_leads()

    def _check_leads(self) -> None:
        if self._waiting.is_closed:
            raise NotLeader(f"this broker leads {self._query.tp} no more")
