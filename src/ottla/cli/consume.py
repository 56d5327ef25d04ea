"""`ottla consume`: records become lines."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from ottla.cli import terminal
from ottla.cli.group.consume import GroupReading, print_as_member
from ottla.cli.options import Broker, Json
from ottla.cli.record_output import (
    PLACES_HELP,
    Print,
    compile_template,
    json_line,
    line_template,
)
from ottla.cli.session import ask
from ottla.cli.status import OK
from ottla.client.client import Client
from ottla.client.partitions import EARLIEST, LATEST, Isolation, list_offsets
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

app = typer.Typer(rich_markup_mode=None)

_EDGES: Final = {Edge.BEGINNING: EARLIEST, Edge.END: LATEST}


class IsolationName(StrEnum):
    """As Kafka's consumers call it."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@app.command()
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="What is read.")],
    partition: Annotated[
        list[int], typer.Option("--partition", min=0, metavar="P", help="Only this; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    start: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="beginning, end, an offset, a time, or -2h."),
    ] = Edge.BEGINNING.value,
    until: Annotated[
        str | None, typer.Option("--until", metavar="PLACE", help="Stop before it; same words.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Read as a member; the group remembers.")
    ] = None,
    commit_every: Annotated[
        str, typer.Option(metavar="SPAN", help="How often a member commits; 0s: always.")
    ] = "1s",
    json: Json = False,
    template: Annotated[str | None, typer.Option("--format", help=PLACES_HELP)] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print keys before values.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers too.")] = False,
    isolation: Annotated[
        IsolationName, typer.Option(help="Whether open and aborted transactions are seen.")
    ] = IsolationName.READ_UNCOMMITTED,
    broker: Broker = "",
) -> int:
    """Read records and print one per line; stops at the end unless --follow is given.

    Places are beginning, end, an offset such as 42, a time such as 2026-11-15T00:00Z (UTC
    unless it says otherwise), or a time ago such as -2h, -30m, -1d. Nothing is committed: reading
    the same again is always possible.

    With --group it reads as a member of that group: what others do not read, from what the group
    has committed on; --from counts only where that is nothing. A record is committed after it
    was printed, so none is lost, and some may be printed twice if the command dies. SIGTERM and
    Ctrl-C make it commit and leave.

    With --json each line is an object with topic, partition, offset, timestamp (ms), key, value,
    headers; bytes that are not UTF-8 come as key_base64 and value_base64.

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
        raise UsageRefused("--follow never stops, --until does: leave one of them out")
    last = None if follow else parse_log_position(until or Edge.END.value, now_ms)
    printer = _choose_printer(template, json=json, keys=keys, headers=headers)
    level = Isolation[isolation.name]
    topics = list(dict.fromkeys(topics))
    if group is not None:
        if partition or until is not None:
            raise UsageRefused("--group shares out partitions: leave out --partition and --until")
        asked = GroupReading(
            group=group,
            topics=topics,
            start=_group_start(first),
            follow=follow,
            count_max=count,
            commit_every_s=parse_duration_ms(commit_every) / 1000,
            isolation=level,
        )
        ask(broker, lambda client: print_as_member(client, asked, printer))
        return OK

    async def question(client: Client) -> None:
        tps = await _choose_partitions(client, topics, partition)
        ranges = await resolve_ranges(client, tps, first, last, level)
        await _print_records(client, ranges, printer, count, level)

    ask(broker, question)
    return OK


def _choose_printer(template: str | None, *, json: bool, keys: bool, headers: bool) -> Print:
    if template is not None:
        if json or keys or headers:
            raise UsageRefused("--format already says it all: leave out --json, --keys, --headers")
        return compile_template(template)
    return json_line if json else compile_template(line_template(keys=keys, headers=headers))


def _group_start(moment: LogPosition) -> int:
    if isinstance(moment, AtOffset):
        raise UsageRefused("--group begins at what it has committed: --from cannot be an offset")
    return moment.timestamp_ms if isinstance(moment, AtTime) else _EDGES[moment]


async def _choose_partitions(
    client: Client, topics: list[str], wanted: list[int]
) -> list[TopicPartition]:
    view = await client.describe(topics)
    tps = list[TopicPartition]()
    for topic in topics:
        count = len(view.topics[topic].partitions)
        if wrong := [index for index in wanted if index >= count]:
            raise UsageRefused(f"there is no partition {wrong[0]}, topic {topic} has {count}")
        tps += [TopicPartition(topic, index) for index in sorted(set(wanted)) or range(count)]
    return tps


async def resolve_ranges(
    client: Client,
    tps: list[TopicPartition],
    first: LogPosition,
    last: LogPosition | None,
    isolation: Isolation,
) -> dict[TopicPartition, ReadRange]:
    """Which offsets of each partition lie between two moments, as things are now."""
    starts = await _locate(client, tps, Edge.BEGINNING, isolation)
    ends = await _locate(client, tps, Edge.END, isolation)
    chosen_starts = await _locate(client, tps, first, isolation)
    chosen_ends = ends if last is None else await _locate(client, tps, last, isolation)
    ranges = dict[TopicPartition, ReadRange]()
    for tp in tps:
        start = chosen_starts[tp]
        if start < starts[tp]:
            terminal.note(f"{tp} begins at offset {starts[tp]}: what came before is gone")
            start = starts[tp]
        if last is None:
            ranges[tp] = ReadRange(min(start, ends[tp]))
        else:
            ranges[tp] = ReadRange(start, min(chosen_ends[tp], ends[tp]))
    return ranges


async def _locate(
    client: Client, tps: list[TopicPartition], moment: LogPosition, isolation: Isolation
) -> dict[TopicPartition, Offset]:
    """The offset of a moment in each partition; a time after every record is the end."""
    if isinstance(moment, AtOffset):
        return dict.fromkeys(tps, moment.offset)
    wanted = moment.timestamp_ms if isinstance(moment, AtTime) else _EDGES[moment]
    found = await list_offsets(client, dict.fromkeys(tps, wanted), isolation)
    if late := [tp for tp in tps if found[tp] is None]:
        found |= await list_offsets(client, dict.fromkeys(late, LATEST), isolation)
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
