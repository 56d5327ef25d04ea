"""`ottla delay`: list and cancel records that wait."""

import re
from typing import Annotated, Any, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.partition_choice import choose_partitions
from ottla.cli.run_client import run_with_client
from ottla.cli.tickets import (
    check_tickets,
    format_wait,
    key_field,
    parse_tickets,
    report_outcomes,
    shown_key,
)
from ottla.client.client import Client
from ottla.client.positions import format_local_time, parse_duration_ms, parse_time
from ottla.client.waiting_records import (
    CancelOutcome,
    Ticket,
    WaitingChoice,
    WaitingCounts,
    WaitingRecord,
    cancel,
    count_waiting,
    list_waiting,
)
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs

app = typer.Typer(rich_markup_mode=None, help="List and cancel records that wait.")
_LIMIT: Final = 100
_DURATION: Final = re.compile(r"\+?(?:[0-9]+(?:ms|[smhdw]))+")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic with delay.enable.")]
Partition = Annotated[
    int | None, typer.Option(min=0, metavar="P", help="Only this partition; default: all.")
]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Only records with this key; reads all that wait."),
]
DueBefore = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only what is due before: a time, or 2h from now."),
]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="At most so many records.")]
Tickets = Annotated[
    list[str], typer.Argument(metavar="TICKET...", help="Tickets, each PARTITION:OFFSET.")
]


@app.command("list")
def list_records(
    topic: TopicName,
    partition: Partition = None,
    key: Key = None,
    due_before: DueBefore = None,
    limit: Limit = _LIMIT,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """List records that wait, those due first at the top, and how many wait in each partition.

    Partitions in which nothing waits are left out, but for --json.

    \b
    Examples:
      ottla delay list reminders
      ottla delay list reminders --due-before 2h --limit 1000
      ottla delay list reminders --key invoice-7 --json | jq -r '.records[].ticket'
    """
    now_ms = SystemClock().now_ms()
    choice = WaitingChoice(
        key=None if key is None else key.encode(),
        due_before_ms=None if due_before is None else _parse_due(due_before, now_ms),
        count_max=limit,
    )

    async def work(client: Client) -> tuple[list[WaitingCounts], list[WaitingRecord]]:
        chosen = None if partition is None else frozenset({partition})
        tps = await choose_partitions(client, {topic: chosen})
        counts = await count_waiting(client, tps)
        return counts, await list_waiting(client, tps, choice)

    counts, found = run_with_client(broker, work)
    if json:
        terminal.write_json(
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": one.partition,
                        "waiting": one.waiting,
                        "schedules": one.schedules,
                        "undecided": one.undecided,
                    }
                    for one in counts
                ],
                "records": [_as_json(one, now_ms) for one in found],
            }
        )
        return OK
    _write_records(found, now_ms)
    for one in counts:
        if one.waiting or one.undecided:
            undecided = f", {one.undecided} in open transactions" if one.undecided else ""
            terminal.print_note(f"partition {one.partition}: {one.waiting} waiting{undecided}")
    return OK


@app.command("cancel")
def cancel_records(
    topic: TopicName, ticket: Tickets, json: Json = False, broker: Broker = ""
) -> int:
    """Cancel records that wait, by their tickets, and say what became of each.

    A ticket is the partition and the offset that the response to the producer said. Of a schedule
    the first ticket counts as well as that of the next record. Exit code 1 if one was not
    cancelled: delivered already, cancelled already, or unknown.

    \b
    Examples:
      ottla delay cancel reminders 0:42 1:7
    """
    tickets = parse_tickets(ticket)

    async def work(client: Client) -> dict[Ticket, CancelOutcome]:
        await check_tickets(client, topic, tickets)
        return await cancel(client, topic, tickets, SystemClock().now_ms())

    return report_outcomes(topic, run_with_client(broker, work), tickets, json=json)


def _parse_due(text: str, now_ms: TimestampMs) -> TimestampMs:
    word = text.strip()
    if _DURATION.fullmatch(word):
        return TimestampMs(now_ms + parse_duration_ms(word.removeprefix("+")))
    try:
        return parse_time(word)
    except UsageRefused:
        raise UsageRefused(
            f"--due-before: {text!r} is not a time, such as 2026-11-15T00:00Z, or 2h from now"
        ) from None


def _write_records(found: list[WaitingRecord], now_ms: TimestampMs) -> None:
    terminal.write_table(
        ["TICKET", "DUE", "IN", "SIZE", "SCHEDULE", "KEY"],
        [
            [
                str(one.ticket),
                format_local_time(one.due_ms),
                format_wait(one.due_ms - now_ms),
                terminal.format_size(one.size_bytes),
                "" if one.schedule is None else str(one.schedule),
                shown_key(one.key) if one.is_readable else "(cannot be read)",
            ]
            for one in found
        ],
    )


def _as_json(one: WaitingRecord, now_ms: TimestampMs) -> dict[str, Any]:
    return {
        "ticket": str(one.ticket),
        "due": format_local_time(one.due_ms),
        "due_ms": one.due_ms,
        "in_ms": one.due_ms - now_ms,
        "size_bytes": one.size_bytes,
        "schedule": None if one.schedule is None else str(one.schedule),
        "readable": one.is_readable,
        **key_field(one.key),
    }
