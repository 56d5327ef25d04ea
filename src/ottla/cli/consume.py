"""`ottla consume`: prints records."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.group.consume import GroupReading, print_as_member
from ottla.cli.options import Broker, Json
from ottla.cli.partition_choice import choose_partitions
from ottla.cli.record_output import (
    FORMAT_HELP,
    Print,
    compile_template,
    json_line,
    line_template,
)
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.partitions import Isolation, list_offsets
from ottla.client.positions import (
    AtOffset,
    AtTime,
    Edge,
    LogPosition,
    parse_duration_ms,
    parse_log_position,
)
from ottla.client.reader import ReadRange, read
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import Offset, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST, LATEST

app = typer.Typer(rich_markup_mode=None)

_EDGES: Final = {Edge.BEGINNING: EARLIEST, Edge.END: LATEST}


class IsolationName(StrEnum):
    """The isolation levels by Kafka's names."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to read.")]
Partitions = Annotated[
    list[int],
    typer.Option("--partition", min=0, metavar="P", help="Only this partition; repeatable."),
]
From = Annotated[
    str,
    typer.Option("--from", metavar="POSITION", help="beginning, end, an offset, a time, or -2h."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="POSITION", help="Stop before this position.")
]
Count = Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N records.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")]
Group = Annotated[
    str | None,
    typer.Option(metavar="GROUP", help="Read as a member of this group and commit offsets."),
]
CommitEvery = Annotated[
    str,
    typer.Option(metavar="DURATION", help="How often a member commits; 0s: after every write."),
]
Template = Annotated[str | None, typer.Option("--format", help=FORMAT_HELP)]
Keys = Annotated[bool, typer.Option("--keys", help="Print keys before values.")]
Headers = Annotated[bool, typer.Option("--headers", help="Print headers before values.")]
IsolationLevel = Annotated[
    IsolationName,
    typer.Option(help="Whether records of open and aborted transactions are read."),
]


@app.command()
def consume(
    topics: Topics,
    partition: Partitions = [],  # noqa: B006  typer copies it
    start: From = Edge.BEGINNING.value,
    until: Until = None,
    count: Count = None,
    follow: Follow = False,
    group: Group = None,
    commit_every: CommitEvery = "1s",
    json: Json = False,
    template: Template = None,
    keys: Keys = False,
    headers: Headers = False,
    isolation: IsolationLevel = IsolationName.READ_UNCOMMITTED,
    broker: Broker = "",
) -> int:
    """Read records and print one per line; stops at the end unless --follow is given.

    A position is beginning, end, an offset such as 42, a time such as 2026-11-15T00:00Z (UTC
    without a zone), or a time ago such as -2h, -30m, -1d. Without --group nothing is committed.

    With --group it reads the partitions assigned to it as a member of that group, from the
    committed offsets on; --from is for partitions without one. A record is committed after it was
    printed, so none is lost, and some may be printed twice after a crash. On SIGTERM and Ctrl-C it
    commits and leaves the group.

    With --json each line is an object with topic, partition, offset, timestamp (ms), key, value,
    headers; bytes that are not UTF-8 are in key_base64 and value_base64.

    \b
    Examples:
      ottla consume orders
      ottla consume orders --from -2h --keys
      ottla consume orders --partition 0 --from 100 --count 10 --json
      ottla consume orders --follow --from end --format '%t %k=%v\\n'
      ottla consume orders payments --group billing --follow
    """
    now_ms = SystemClock().now_ms()
    first = parse_log_position(start, now_ms)
    if follow and until is not None:
        raise UsageRefused("--follow and --until exclude each other: leave one out")
    last = None if follow else parse_log_position(until or Edge.END.value, now_ms)
    printer = _choose_printer(template, json=json, keys=keys, headers=headers)
    level = Isolation[isolation.name]
    topics = list(dict.fromkeys(topics))
    chosen = frozenset(partition) or None
    if group is not None:
        if partition or until is not None:
            raise UsageRefused("--group assigns partitions: leave out --partition and --until")
        options = GroupReading(
            group=group,
            topics=topics,
            start=_group_start(first),
            follow=follow,
            count_max=count,
            commit_every_s=parse_duration_ms(commit_every) / 1000,
            isolation=level,
        )
        run_with_client(broker, lambda client: print_as_member(client, options, printer))
        return OK

    async def work(client: Client) -> None:
        tps = await choose_partitions(client, dict.fromkeys(topics, chosen))
        ranges = await resolve_ranges(client, tps, first, last, level)
        await _print_records(client, ranges, printer, count, level)

    run_with_client(broker, work)
    return OK


def _choose_printer(template: str | None, *, json: bool, keys: bool, headers: bool) -> Print:
    if template is not None:
        if json or keys or headers:
            raise UsageRefused("--format replaces --json, --keys and --headers: leave them out")
        return compile_template(template)
    return json_line if json else compile_template(line_template(keys=keys, headers=headers))


def _group_start(position: LogPosition) -> int:
    if isinstance(position, AtOffset):
        raise UsageRefused(
            "with --group, --from cannot be an offset: it is for partitions without one"
        )
    return position.timestamp_ms if isinstance(position, AtTime) else _EDGES[position]


async def resolve_ranges(
    client: Client,
    tps: list[TopicPartition],
    first: LogPosition,
    last: LogPosition | None,
    isolation: Isolation,
) -> dict[TopicPartition, ReadRange]:
    """The offsets of each partition between two positions, at present."""
    starts = await _locate(client, tps, Edge.BEGINNING, isolation)
    ends = await _locate(client, tps, Edge.END, isolation)
    chosen_starts = await _locate(client, tps, first, isolation)
    chosen_ends = ends if last is None else await _locate(client, tps, last, isolation)
    ranges = dict[TopicPartition, ReadRange]()
    for tp in tps:
        start = chosen_starts[tp]
        if start < starts[tp]:
            terminal.print_note(f"{tp} begins at offset {starts[tp]}: earlier records were deleted")
            start = starts[tp]
        if last is None:
            ranges[tp] = ReadRange(min(start, ends[tp]))
        else:
            ranges[tp] = ReadRange(start, min(chosen_ends[tp], ends[tp]))
    return ranges


async def _locate(
    client: Client, tps: list[TopicPartition], position: LogPosition, isolation: Isolation
) -> dict[TopicPartition, Offset]:
    """The offset of a position in each partition; a time after every record is the end."""
    if isinstance(position, AtOffset):
        return dict.fromkeys(tps, position.offset)
    wanted = position.timestamp_ms if isinstance(position, AtTime) else _EDGES[position]
    found = await list_offsets(client, dict.fromkeys(tps, wanted), isolation)
    if missing := [tp for tp in tps if found[tp] is None]:
        found |= await list_offsets(client, dict.fromkeys(missing, LATEST), isolation)
    return {tp: offset for tp, offset in found.items() if offset is not None}


async def _print_records(
    client: Client,
    ranges: dict[TopicPartition, ReadRange],
    printer: Print,
    count_max: int | None,
    isolation: Isolation,
) -> None:
    printed = 0
    async for tp, records in read(client, ranges, isolation=isolation):
        wanted = records if count_max is None else records[: count_max - printed]
        sys.stdout.buffer.write(b"".join([printer(tp, record) for record in wanted]))
        sys.stdout.buffer.flush()
        printed += len(wanted)
        if printed == count_max:
            return
