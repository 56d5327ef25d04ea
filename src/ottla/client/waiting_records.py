"""Records that wait: listing them by asking the leaders of partitions, and cancelling them."""

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from typing import Any, Final, NamedTuple

from ottla.client.client import Client
from ottla.client.errors import (
    TRANSPORT_ERRORS,
    ClientError,
    NotSupported,
    RecordsRefused,
    Refused,
    check,
)
from ottla.client.producer import IdempotentProducer
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition
from ottla.protocol.messages.admin import AdminQueryRequest, AdminQueryResponse, Json
from ottla.records.batch import Record
from ottla.records.hidden_records import CANCEL, TicketEnd

_QUERY: Final = "waiting.list"
_PAGE_ROWS: Final = 500
_CANCELS_PER_BATCH: Final = 500


class Ticket(NamedTuple):
    """The partition and the offset at which a record was accepted."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRecord:
    """A record that waits, without its value. `schedule` is the first ticket of its schedule."""

    ticket: Ticket
    due_ms: TimestampMs
    size_bytes: int
    key: bytes | None
    is_readable: bool  # False if its leader cannot read it from its log
    schedule: Ticket | None
    cron: str | None
    timezone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCounts:
    """Counts of what waits in a partition. `undecided` are in transactions that are open."""

    partition: int
    is_enabled: bool  # whether it takes more
    waiting: int
    schedules: int
    undecided: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChoice:
    """Limits of which records are listed; None means any."""

    key: bytes | None = None
    due_before_ms: TimestampMs | None = None
    schedules_only: bool = False
    count_max: int | None = None


class CancelOutcome(StrEnum):
    """The result of cancelling a ticket."""

    CANCELLED = "cancelled"
    ALREADY_DELIVERED = "already delivered"
    ALREADY_CANCELLED = "already cancelled"
    UNDECIDED = "in an open transaction"
    UNKNOWN = "unknown"


_OUTCOMES: Final = {
    TicketEnd.DELIVERED: CancelOutcome.ALREADY_DELIVERED,
    TicketEnd.CANCELLED: CancelOutcome.ALREADY_CANCELLED,
    TicketEnd.UNDECIDED: CancelOutcome.UNDECIDED,
    TicketEnd.UNKNOWN: CancelOutcome.UNKNOWN,
}


async def count_waiting(client: Client, tps: Sequence[TopicPartition]) -> list[WaitingCounts]:
    """The counts of each partition; `Refused` if records of the topic cannot wait."""
    found = await asyncio.gather(*(_ask(client, tp, {"limit": 0}) for tp in tps))
    return [_counts(tp, one) for tp, one in zip(tps, found, strict=True)]


async def find_waiting(
    client: Client, tp: TopicPartition, offsets: Sequence[int]
) -> list[WaitingRecord]:
    """The records of these tickets, if they wait; a schedule's first ticket means its next one."""
    assert len(offsets) <= _PAGE_ROWS, "a broker takes no more at a time"
    found = await _ask(client, tp, {"tickets": list(offsets)})
    return [_record(tp, row) for row in found["rows"]]


async def list_waiting(
    client: Client, tps: Sequence[TopicPartition], choice: WaitingChoice
) -> list[WaitingRecord]:
    """The chosen records of some partitions of a topic, by due time."""
    pages = [_read_pages(client, tp, choice) for tp in tps]
    try:
        if choice.key is None:
            return await _merge(pages, choice.count_max)
        return await _sort(pages, choice.count_max)
    finally:
        for one in pages:
            await one.aclose()


async def cancel(
    client: Client, topic: str, tickets: Sequence[Ticket], now_ms: TimestampMs
) -> dict[Ticket, CancelOutcome]:
    """Cancel tickets, or schedules by either ticket; each is cancelled once, whatever fails.

    Ask for the counts of the partitions first: where records cannot wait, a cancel is an ordinary
    record.
    """
    by_partition = defaultdict[int, list[Ticket]](list)
    for ticket in dict.fromkeys(tickets):
        by_partition[ticket.partition].append(ticket)
    producer = await IdempotentProducer.open(client)
    outcomes = dict[Ticket, CancelOutcome]()
    for partition, some in by_partition.items():
        tp = TopicPartition(topic, partition)
        for first in range(0, len(some), _CANCELS_PER_BATCH):
            batch = some[first : first + _CANCELS_PER_BATCH]
            outcomes |= await _cancel_batch(producer, tp, batch, now_ms)
    return outcomes


async def _cancel_batch(
    producer: IdempotentProducer, tp: TopicPartition, tickets: list[Ticket], now_ms: TimestampMs
) -> dict[Ticket, CancelOutcome]:
    """Send cancels; a batch is refused as a whole, and then sent again without the bad ones."""
    outcomes = dict[Ticket, CancelOutcome]()
    left = tickets
    while left:
        try:
            await producer.write(tp, [_cancel_record(one, now_ms) for one in left])
        except RecordsRefused as refused:
            bad = {left[index]: _outcome(text) for index, text in refused.reasons.items()}
            outcomes |= bad
            left = [one for one in left if one not in bad]
        else:
            outcomes |= dict.fromkeys(left, CancelOutcome.CANCELLED)
            left = []
    return outcomes


def _cancel_record(ticket: Ticket, now_ms: TimestampMs) -> Record:
    return Record(timestamp_ms=now_ms, headers=((CANCEL, str(ticket.offset).encode()),))


def _outcome(text: str) -> CancelOutcome:
    end = TicketEnd.read(text)
    if end is None:
        raise ClientError(f"cancelling failed: {text}")
    return _OUTCOMES[end]


# Pages


async def _read_pages(
    client: Client, tp: TopicPartition, choice: WaitingChoice
) -> AsyncGenerator[WaitingRecord, None]:
    """The records of one partition: by due time, or with a key in the order of tickets."""
    wanted: dict[str, Json] = {"schedules_only": choice.schedules_only}
    if choice.key is not None:
        wanted["key"] = base64.b64encode(choice.key).decode()
    elif choice.count_max is not None:
        wanted["limit"] = min(choice.count_max, _PAGE_ROWS)
    if choice.due_before_ms is not None:
        wanted["due_before_ms"] = choice.due_before_ms
    after: Json = None
    while True:
        found = await _ask(client, tp, {**wanted, "after": after})
        for row in found["rows"]:
            yield _record(tp, row)
        after = found["after"]
        if after is None:
            return


async def _merge(
    pages: Sequence[AsyncIterator[WaitingRecord]], count_max: int | None
) -> list[WaitingRecord]:
    """The first records of all partitions; a page is asked for when the one before is used up."""
    firsts = await _firsts(pages)
    heads = [(_order(one), one, pages[at]) for at, one in enumerate(firsts) if one is not None]
    heapify(heads)  # orders are unique: records are not compared
    found = list[WaitingRecord]()
    while heads:
        _, record, rest = heads[0]
        found.append(record)
        if len(found) == count_max:
            break
        following = await anext(rest, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (_order(following), following, rest))
    return found


async def _firsts(pages: Sequence[AsyncIterator[WaitingRecord]]) -> list[WaitingRecord | None]:
    """The first record of each partition. Nothing is being read any more when this ends."""
    reads = [asyncio.ensure_future(anext(one, None)) for one in pages]
    try:
        return await asyncio.gather(*reads)
    finally:  # pages that are being read could not be closed
        for one in reads:
            one.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _sort(
    pages: Sequence[AsyncIterator[WaitingRecord]], count_max: int | None
) -> list[WaitingRecord]:
    """The first records of all partitions, whose pages are not in order."""
    found = list[WaitingRecord]()
    for page in pages:
        async for record in page:
            found.append(record)
            if count_max is not None and len(found) > 2 * max(count_max, _PAGE_ROWS):
                found = sorted(found, key=_order)[:count_max]
    return sorted(found, key=_order)[:count_max]


def _order(record: WaitingRecord) -> tuple[int, Ticket]:
    return record.due_ms, record.ticket


# One request


async def _ask(client: Client, tp: TopicPartition, wanted: dict[str, Json]) -> Any:
    body = json.dumps({"topic": tp.topic, "partition": tp.partition, **wanted}).encode()

    async def attempt() -> Any:
        leader = await client.leader_of(tp)
        request = AdminQueryRequest(name=_QUERY, body=body)
        try:
            response = await client.send_to_broker(leader, request, AdminQueryResponse)
        except NotSupported as problem:
            raise NotSupported(f"{problem}: it is no broker of Ottla, or an older one") from None
        if response.error_code == ErrorCode.INVALID_REQUEST:
            detail = response.error_message
            raise Refused(ErrorCode.INVALID_REQUEST, f"topic {tp.topic}", detail)
        check(response.error_code, str(tp), response.error_message)
        return json.loads(response.body)

    return await client.retry(attempt, on=TRANSPORT_ERRORS)


def _counts(tp: TopicPartition, found: Any) -> WaitingCounts:
    return WaitingCounts(
        partition=tp.partition,
        is_enabled=found["is_enabled"],
        waiting=found["waiting"],
        schedules=found["schedules"],
        undecided=found["undecided"],
    )


def _record(tp: TopicPartition, row: Any) -> WaitingRecord:
    schedule = row["schedule"]
    return WaitingRecord(
        ticket=Ticket(tp.partition, row["ticket"]),
        due_ms=TimestampMs(row["due_ms"]),
        size_bytes=row["size_bytes"],
        key=None if row["key"] is None else base64.b64decode(row["key"]),
        is_readable=row["is_readable"],
        schedule=None if schedule is None else Ticket(tp.partition, schedule),
        cron=row.get("cron"),
        timezone=row.get("timezone"),
    )
