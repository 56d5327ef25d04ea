"""`ottla consume`: prints records."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from ottla.cli.async_io import AsyncOutput
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.partition_choice import choose_partitions
from ottla.cli.read_ranges import EDGES, check_order, resolve_ranges
from ottla.cli.record_output import (
    FORMAT_HELP,
    Print,
    compile_template,
    json_lines,
    line_template,
)
from ottla.cli.record_printing import print_ranges, print_tail
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.partitions import Isolation
from ottla.client.positions import (
    AtOffset,
    AtTime,
    BeforeEnd,
    Edge,
    LogPosition,
    parse_duration_ms,
    parse_log_position,
)
from ottla.client.reader import ReadRange
from ottla.clock import SystemClock
from ottla.errors import UsageRefused

app = typer.Typer(rich_markup_mode=None)

_SHARE_EXCLUDES: Final = (
    "--share excludes --group, --from, --until, --tail, --partition and --isolation: the share"
    " group decides; see `ottla config get group`"
)
_TAIL_MAX: Final = 100_000  # so many lines of each partition are kept in memory


class IsolationName(StrEnum):
    """The isolation levels by Kafka's names."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


_DEFAULT_ISOLATION: Final = IsolationName.READ_UNCOMMITTED

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics to read.")]
Partitions = Annotated[
    list[int],
    typer.Option("--partition", min=0, metavar="P", help="Only this partition; repeatable."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="beginning, end, an offset, -10 (offsets before the end), a time, or -2h.",
        show_default=Edge.BEGINNING.value,
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="POSITION", help="Stop before this position.")
]
Count = Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N records.")]
Tail = Annotated[
    int | None,
    typer.Option(
        min=1, max=_TAIL_MAX, metavar="N", help="The newest N records of all partitions together."
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")]


def _check_group(name: str | None) -> str | None:
    if name == "":
        raise UsageRefused("--group is empty: give the group a name")
    return name


Group = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Read as a member of this group and commit offsets.",
        callback=_check_group,
    ),
]


def _check_share_group(name: str | None) -> str | None:
    if name == "":
        raise UsageRefused("--share is empty: give the share group a name")
    return name


Share = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Read as a member of this share group and accept what is printed.",
        callback=_check_share_group,
    ),
]
CommitEvery = Annotated[
    str,
    typer.Option(metavar="DURATION", help="How often a member commits; 0s: after every write."),
]
Template = Annotated[str | None, typer.Option("--format", metavar="TEMPLATE", help=FORMAT_HELP)]
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
    start: From = None,
    until: Until = None,
    tail: Tail = None,
    count: Count = None,
    follow: Follow = False,
    group: Group = None,
    share: Share = None,
    commit_every: CommitEvery = "1s",
    json: Json = False,
    template: Template = None,
    keys: Keys = False,
    headers: Headers = False,
    isolation: IsolationLevel = _DEFAULT_ISOLATION,
    broker: Broker = "",
) -> int:
    """Read records and print one per line; stops at the end unless --follow is given.

    A position is beginning, end, an offset such as 42, -10 for ten offsets before the end of each
    partition, a time such as 2026-11-15T00:00Z (UTC without a zone), or a time ago such as -2h,
    -30m, -1d. --tail prints the newest records of all partitions together, by time. Without --group
    nothing is committed.

    With --group it reads what the group assigns to it, from the committed offsets on; --from is for
    partitions without one. A record is committed after it was printed, so none is lost, and some
    may be printed twice after a crash. On SIGTERM and Ctrl-C it commits and leaves the group.

    With --share it is a member of a share group: each record is printed by one member, and accepted
    when it was written. Without --follow it stops when none is available for a second. A new group
    begins at the end, unless `ottla config set group GROUP share.auto.offset.reset=earliest`.

    With --json each line is an object with topic, partition, offset, timestamp (ms), key, value,
    headers; bytes that are not UTF-8 are in key_base64 and value_base64.

    \b
    Examples:
      ottla consume orders --from -2h --keys
      ottla consume orders --tail 10 --follow
      ottla consume orders --partition 0 --from 100 --count 10 --json
      ottla consume orders --follow --from end --format '%t %k=%v\\n'
      ottla consume orders payments --group billing --follow
      ottla consume jobs --share workers --count 1 --json
    """
    _check_excluded(share, tail, [start, until, group], count, partition, isolation)
    printer = _choose_printer(template, json=json, keys=keys, headers=headers)
    names = list(dict.fromkeys(topics))
    if share is not None:
        return _share(broker, share, names, printer, follow=follow, count_max=count)
    first, last = _parse_range(start, until, follow=follow)
    level = Isolation[isolation.name]
    if group is not None:
        if partition or until is not None:
            raise UsageRefused("--group assigns partitions: leave out --partition and --until")
        # Reading without a group needs none of it.
        from ottla.cli.group.consume import GroupReading, consume_as_member  # noqa: PLC0415

        options = GroupReading(
            group=group,
            topics=names,
            start=_group_start(first),
            follow=follow,
            count_max=count,
            commit_every_s=parse_duration_ms(commit_every) / 1000,
            isolation=level,
        )
        return consume_as_member(broker, options, printer)
    choices: dict[str, frozenset[int] | None] = dict.fromkeys(topics, frozenset(partition) or None)
    return _Reading(choices, first, last, tail, count, level, printer).run(broker)


def _check_excluded(
    share: str | None,
    tail: int | None,
    given: list[str | None],
    count: int | None,
    partitions: list[int],
    isolation: IsolationName,
) -> None:
    """Refuse options that exclude each other; `given` are --from, --until and --group."""
    if tail is not None and (any(given) or count):
        raise UsageRefused("--tail excludes --from, --until, --count and --group: leave them out")
    is_chosen = tail or partitions or isolation != _DEFAULT_ISOLATION
    if share is not None and (any(given) or is_chosen):
        raise UsageRefused(_SHARE_EXCLUDES)


def _share(
    broker: str,
    group: str,
    topics: list[str],
    printer: Print,
    *,
    follow: bool,
    count_max: int | None,
) -> int:
    """Read as a member of a share group; returns the exit code."""
    # Reading without a share group needs none of it.
    from ottla.cli.share_consume import ShareReading, consume_as_sharer  # noqa: PLC0415

    sharing = ShareReading(group=group, topics=topics, follow=follow, count_max=count_max)
    return consume_as_sharer(broker, sharing, printer)


def _parse_range(
    start: str | None, until: str | None, *, follow: bool
) -> tuple[LogPosition, LogPosition | None]:
    if follow and until is not None:
        raise UsageRefused("--follow and --until exclude each other: leave one out")
    now_ms = SystemClock().now_ms()
    first = parse_log_position(start or Edge.BEGINNING.value, now_ms)
    last = None if follow else parse_log_position(until or Edge.END.value, now_ms)
    check_order(first, last)
    return first, last


@dataclass(frozen=True, slots=True)
class _Reading:
    """The options of a command line without --group; `last` is None with --follow."""

    choices: dict[str, frozenset[int] | None]
    first: LogPosition
    last: LogPosition | None
    tail: int | None
    count_max: int | None
    isolation: Isolation
    printer: Print

    def run(self, broker: str) -> int:
        """Print the records as they come; returns the exit code."""
        sys.stdout.flush()
        run_with_client(broker, self._print_while_open)
        return OK

    async def _print_while_open(self, client: Client) -> None:
        output = AsyncOutput(sys.stdout.fileno())
        await output.run_while_open(self._print(client, output))

    async def _print(self, client: Client, output: AsyncOutput) -> None:
        tps = await choose_partitions(client, self.choices)
        if self.tail is None:
            ranges = await resolve_ranges(client, tps, self.first, self.last, self.isolation)
        else:
            ends = await print_tail(
                client, tps, self.tail, self.printer, output, isolation=self.isolation
            )
            if self.last is not None:
                return
            ranges = {tp: ReadRange(end) for tp, end in ends.items()}
        await print_ranges(
            client,
            ranges,
            self.printer,
            output,
            count_max=self.count_max,
            isolation=self.isolation,
        )


def _choose_printer(template: str | None, *, json: bool, keys: bool, headers: bool) -> Print:
    if template is not None:
        if json or keys or headers:
            raise UsageRefused("--format replaces --json, --keys and --headers: leave them out")
        return compile_template(template)
    return json_lines if json else compile_template(line_template(keys=keys, headers=headers))


def _group_start(position: LogPosition) -> int:
    if isinstance(position, AtOffset | BeforeEnd):
        raise UsageRefused(
            "with --group, --from cannot be an offset: it is for partitions without one; write"
            " beginning, end or a time"
        )
    return position.timestamp_ms if isinstance(position, AtTime) else EDGES[position]
