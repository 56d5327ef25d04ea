"""`ottla schedule`: add, list and remove records that come again and again."""

import sys
from collections.abc import Sequence
from random import SystemRandom
from typing import Annotated, Any, Final, NamedTuple

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.partition_choice import check_partition, choose_partitions
from ottla.cli.record_input import parse_header
from ottla.cli.run_client import run_with_client
from ottla.cli.tickets import (
    check_tickets,
    key_field,
    parse_tickets,
    report_outcomes,
    shown_key,
)
from ottla.client.client import Client
from ottla.client.errors import ClientError, RecordsRefused
from ottla.client.partitioner import Partitioner
from ottla.client.positions import format_local_time
from ottla.client.producer import IdempotentProducer
from ottla.client.waiting_records import (
    CancelOutcome,
    Ticket,
    WaitingChoice,
    WaitingRecord,
    cancel,
    count_waiting,
    find_waiting,
    list_waiting,
)
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TimestampMs, TopicPartition
from ottla.queues.schedules import InvalidSchedule, Schedule
from ottla.records.batch import Record
from ottla.records.hidden_records import CRON, TIMEZONE
from ottla.records.record_codec import Headers

app = typer.Typer(rich_markup_mode=None, help="Add, list and remove records that come again.")
_TIMES_SHOWN: Final = 3

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic with delay.enable.")]
Value = Annotated[
    str | None,
    typer.Argument(metavar="VALUE", help="Value of the records.", show_default="standard input"),
]
Cron = Annotated[
    str, typer.Option(metavar="EXPRESSION", help="When it comes: five fields, as cron reads them.")
]
Timezone = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="Time zone of --cron.", show_default="UTC"),
]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Key of the records.")]
HeaderOptions = Annotated[
    list[str],
    typer.Option("--header", metavar="NAME=VALUE", help="Header of the records; repeatable."),
]
Partition = Annotated[
    int | None, typer.Option(min=0, metavar="P", help="Partition; default: by key.")
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Schedules, each by its first ticket or its next one."),
]


class _Added(NamedTuple):
    """A schedule that was added; `following` is None if its first record is being delivered."""

    id: Ticket
    following: WaitingRecord | None


@app.command()
def add(
    topic: TopicName,
    cron: Cron,
    value: Value = None,
    timezone: Timezone = None,
    key: Key = None,
    header: HeaderOptions = [],  # noqa: B006  typer copies it
    partition: Partition = None,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Have a record delivered again and again; prints its id and when it comes next.

    \b
    Examples:
      ottla schedule add reports --cron "0 6 * * 1-5" --timezone Europe/Prague daily
      ottla schedule add reports --cron "*/5 * * * *" --key health < request.json
    """
    headers: Headers = (*map(parse_header, header), (CRON, cron.encode()))
    if timezone is not None:
        headers = (*headers, (TIMEZONE, timezone.encode()))
    record = Record(
        timestamp_ms=SystemClock().now_ms(),
        key=None if key is None else key.encode(),
        value=_read_value() if value is None else value.encode(),
        headers=headers,
    )

    async def work(client: Client) -> _Added:
        return await _add(client, topic, record, partition)

    added = run_with_client(broker, work)
    times_ms = _next_times(added.following)
    if json:
        terminal.write_json(
            {
                "topic": topic,
                "id": str(added.id),
                "next": [format_local_time(one) for one in times_ms],
                "next_ms": times_ms,
            }
        )
        return OK
    terminal.write_lines([str(added.id)])
    for one in times_ms:
        terminal.print_note(f"next {format_local_time(one)}")
    return OK


@app.command("list")
def list_schedules(topic: TopicName, json: Json = False, broker: Broker = "") -> int:
    """List schedules, those due first at the top.

    \b
    Examples:
      ottla schedule list reports
      ottla schedule list reports --json | jq -r .id
    """

    async def work(client: Client) -> list[WaitingRecord]:
        tps = await choose_partitions(client, {topic: None})
        return await list_waiting(client, tps, WaitingChoice(schedules_only=True))

    found = run_with_client(broker, work)
    if json:
        for one in found:
            terminal.write_json({"topic": topic, **_as_json(one)})
        return OK
    terminal.write_table(
        ["ID", "CRON", "ZONE", "NEXT", "KEY"],
        [
            [
                str(one.schedule),
                one.cron or "(cannot be read)",
                one.timezone or "UTC",
                format_local_time(one.due_ms),
                shown_key(one.key),
            ]
            for one in found
        ],
    )
    return OK


@app.command()
def remove(topic: TopicName, ids: Ids, json: Json = False, broker: Broker = "") -> int:
    """Remove schedules: they come no more. What was delivered stays.

    Exit code 1 if one was not removed.

    \b
    Examples:
      ottla schedule remove reports 0:42
    """
    tickets = parse_tickets(ids)

    async def work(client: Client) -> dict[Ticket, CancelOutcome]:
        await check_tickets(client, topic, tickets)
        await _refuse_others(client, topic, tickets)
        return await cancel(client, topic, tickets, SystemClock().now_ms())

    return report_outcomes(topic, run_with_client(broker, work), tickets, json=json)


def _read_value() -> bytes:
    """The whole of standard input, without the newline at its end."""
    if sys.stdin.isatty():
        terminal.print_note("the value is read from standard input; Ctrl-D ends it")
    return sys.stdin.buffer.read().removesuffix(b"\n")


async def _add(client: Client, topic: str, record: Record, partition: int | None) -> _Added:
    view = await client.describe([topic])
    count = len(view.topics[topic].partitions)
    if partition is None:
        partition = Partitioner(count, SystemRandom()).choose(record.key)
    check_partition(topic, partition, count)
    tp = TopicPartition(topic, partition)
    (counts,) = await count_waiting(client, [tp])
    if not counts.is_enabled:
        raise ClientError(
            f"topic {topic}: delay.enable is false: `ottla config set topic {topic}"
            " delay.enable=true` enables it again"
        )
    producer = await IdempotentProducer.open(client)
    try:
        offset = await producer.write(tp, [record])
    except RecordsRefused as refused:
        raise UsageRefused(f"topic {topic}: {'; '.join(refused.reasons.values())}") from None
    if offset is None:
        raise ClientError(f"{tp}: the schedule was added; `ottla schedule list {topic}` has its id")
    found = await find_waiting(client, tp, [offset])
    return _Added(Ticket(partition, offset), found[0] if found else None)


def _next_times(following: WaitingRecord | None) -> list[TimestampMs]:
    """The next three times; fewer if the time zone is not known on this machine."""
    if following is None or following.cron is None:
        return []
    times = [following.due_ms]
    zone = None if following.timezone is None else following.timezone.encode()
    try:
        schedule = Schedule.read(following.cron.encode(), zone)
        while len(times) < _TIMES_SHOWN:
            times.append(TimestampMs(schedule.next_ms(times[-1])))
    except InvalidSchedule:
        pass  # it is over, or the zone is known to the broker alone
    return times


async def _refuse_others(client: Client, topic: str, tickets: Sequence[Ticket]) -> None:
    """Refuse tickets of records that come once."""
    for ticket in tickets:
        tp = TopicPartition(topic, ticket.partition)
        for one in await find_waiting(client, tp, [ticket.offset]):
            if one.schedule is None:
                raise UsageRefused(
                    f"{ticket} is not a schedule, it comes once: `ottla delay cancel {topic}"
                    f" {ticket}` cancels it"
                )


def _as_json(one: WaitingRecord) -> dict[str, Any]:
    return {
        "id": str(one.schedule),
        "cron": one.cron,
        "timezone": one.timezone or "UTC",
        "next": format_local_time(one.due_ms),
        "next_ms": one.due_ms,
        "next_ticket": str(one.ticket),
        **key_field(one.key),
    }
