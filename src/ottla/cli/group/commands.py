"""`ottla group`: list, describe, reset and delete groups of consumers."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar

import typer

from ottla.cli import terminal
from ottla.cli.group.description import (
    GroupProgress,
    describe_progress,
    format_count,
    format_partitions,
)
from ottla.cli.group.offset_reset import Current, Reset, Shift, Target, gather_facts, plan_reset
from ottla.cli.options import Broker, Json, parse_topic_choices
from ottla.cli.session import ask
from ottla.cli.status import FAILED, OK
from ottla.client import groups
from ottla.client.client import Client
from ottla.client.errors import ClientError, NoSuchGroup, Refused
from ottla.client.positions import (
    AtOffset,
    AtTime,
    Edge,
    parse_duration_ms,
    parse_time,
    time_before,
)
from ottla.clock import SystemClock
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import Offset, TimestampMs, TopicPartition

app = typer.Typer(
    rich_markup_mode=None, help="List, describe, reset and delete groups of consumers."
)

_STATES: Final = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"),
    *("Assigning", "Reconciling", "NotReady", "Dead"),
)
_TYPES: Final = ("Classic", "Consumer", "Share", "Streams")
_EMPTY: Final = "Empty"  # the state of a group that nobody is in

Result = TypeVar("Result")
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
TopicChoices = Annotated[
    list[str],
    typer.Option("--topic", metavar="TOPIC[:P,P...]", help="A topic, or some of it; repeatable."),
]


@app.command("list")
def list_groups(
    state: Annotated[
        list[str], typer.Option("--state", metavar="STATE", help="Only these; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    kind: Annotated[
        list[str], typer.Option("--type", metavar="TYPE", help="Only these; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    protocol: Annotated[
        list[str],
        typer.Option("--protocol", metavar="NAME", help="Only these, such as consumer."),
    ] = [],  # noqa: B006  typer copies it
    json: Json = False,
    broker: Broker = "",
) -> int:
    """List the groups of all brokers.

    \b
    Examples:
      ottla group list
      ottla group list --state empty
      ottla group list --type classic --protocol consumer --json | jq -r .group
    """
    states = _known_words("--state", state, _STATES)
    types = _known_words("--type", kind, _TYPES)
    listed = [
        group
        for group in _ask(broker, groups.list_groups)
        if (not states or group.state.lower() in states)
        and (not types or group.type.lower() in types)
        and (not protocol or group.protocol_type in protocol)
    ]
    if json:
        for group in listed:
            terminal.write_json(
                {
                    "group": group.group_id,
                    "type": group.type,
                    "protocol": group.protocol_type,
                    "state": group.state,
                    "coordinator": group.coordinator,
                }
            )
        return OK
    terminal.write_table(
        ["GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"],
        [
            [
                terminal.one_line(group.group_id),
                group.type or "?",
                terminal.one_line(group.protocol_type) or "-",
                group.state or "?",
                str(group.coordinator),
            ]
            for group in listed
        ],
    )
    return OK


@app.command()
def describe(
    names: Annotated[
        list[str], typer.Argument(metavar="[GROUP]...", help="Which; all without a name.")
    ] = [],  # noqa: B006  typer copies it
    members: Annotated[
        bool, typer.Option("--members", help="Show who is in the group instead.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show only the group's state, a line for each.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show how far groups have read each partition, and who reads it.

    LAG is how many records lie between what is committed and the end of the log. With --json a
    group is one object that holds all of it.

    \b
    Examples:
      ottla group describe billing
      ottla group describe billing --members
      ottla group describe --state
      ottla group describe billing --json | jq .lag
    """
    if members and state:
        raise UsageRefused("--members and --state are two views: leave one of them out")
    described, problems = _ask(broker, lambda client: _describe(client, names))
    if json:
        for progress in described:
            terminal.write_json(progress.as_json())
    elif state:
        _write_states(described)
    else:
        for position, progress in enumerate(described):
            if position:
                terminal.write_lines([""])
            terminal.write_lines([_heading(progress)])
            (_write_members if members else _write_partitions)(progress)
    for problem in problems:
        terminal.complain(f"{problem}; `ottla group list` shows what does")
    return FAILED if problems else OK


@app.command("reset-offsets")
def reset_offsets(
    name: GroupName,
    topic: TopicChoices = [],  # noqa: B006  typer copies it
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every topic the group has committed.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Where the log begins.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="This offset.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The first record not older, 2026-11-15T00:00Z."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="SPAN", help="So long ago, such as 2h or 1d12h.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="N records on, or back if negative.")
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Where it is; the end if nowhere yet.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Set how far a group has read. The group must have no members: stop its consumers first.

    Shows each partition with its offset before and after. An offset that a log does not have is
    moved to the nearest that it has, with a note. A group that is not there yet is made.

    \b
    Examples:
      ottla group reset-offsets billing --topic orders --to-earliest --dry-run
      ottla group reset-offsets billing --topic orders:0,2 --to-time 2026-11-15T00:00Z
      ottla group reset-offsets billing --all-topics --by-duration 2h
      ottla group reset-offsets billing --topic orders --topic payments --shift-by -100
    """
    target = choose_target(
        SystemClock().now_ms(),
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_time=to_time,
        by_duration=by_duration,
        shift_by=shift_by,
        to_current=to_current,
    )
    if bool(topic) == all_topics:
        raise UsageRefused(
            "say which topics: either --topic, several times if need be, or --all-topics"
        )
    choices = parse_topic_choices("--topic", topic)

    async def question(client: Client) -> list[Reset]:
        await _check_unused(client, name, must_exist=all_topics)
        plan = await _plan(client, name, target, choices)
        news = {reset.tp: reset.new for reset in plan if reset.new is not None}
        if news and not dry_run:
            await _commit(client, name, news)
        return plan

    plan = _ask(broker, question)
    _write_plan(name, plan, dry_run=dry_run, json=json)
    return OK


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Which groups.")],
    topic: TopicChoices = [],  # noqa: B006  typer copies it
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    broker: Broker = "",
) -> int:
    """Delete groups without members, or with --topic only what they committed for a topic.

    Asks first when a person is there to answer.

    \b
    Examples:
      ottla group delete billing
      ottla group delete billing --topic orders
      ottla group delete billing --topic orders:0,1 --yes
    """
    choices = parse_topic_choices("--topic", topic)
    if not yes and sys.stdin.isatty():
        what = f"what was committed for {', '.join(choices)} by " if choices else ""
        typer.confirm(f"Delete {what}{', '.join(names)}?", abort=True, err=True)

    async def question(client: Client) -> list[ClientError]:
        problems = list[ClientError]()
        progress = terminal.Progress(SystemClock())
        for count, name in enumerate(names):
            progress.show(f"{count} of {len(names)} groups")
            try:
                if choices:
                    problems += await _delete_offsets(client, name, choices)
                else:
                    await groups.delete_group(client, name)
                    terminal.note(f"group {name} deleted")
            except Refused as problem:
                problems.append(problem)
        progress.clear()
        return problems

    problems = _ask(broker, question)
    for problem in problems:
        terminal.complain(str(problem))
    return FAILED if problems else OK


# Words


def _known_words(option: str, words: Sequence[str], known: Sequence[str]) -> frozenset[str]:
    """The words in lower case, as they are compared."""
    lowered = {word.lower() for word in known}
    for word in words:
        if word.lower() not in lowered:
            raise UsageRefused(f"{option} {word!r} is none of {', '.join(known)}")
    return frozenset(word.lower() for word in words)


def choose_target(
    now_ms: TimestampMs,
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift_by: int | None,
    to_current: bool,
) -> Target:
    """Where offsets go: exactly one of the options must say it."""
    targets = list[Target]()
    if to_earliest:
        targets.append(Edge.BEGINNING)
    if to_latest:
        targets.append(Edge.END)
    if to_offset is not None:
        targets.append(AtOffset(Offset(to_offset)))
    if to_time is not None:
        targets.append(AtTime(parse_time(to_time)))
    if by_duration is not None:
        targets.append(AtTime(time_before(now_ms, parse_duration_ms(by_duration))))
    if shift_by is not None:
        targets.append(Shift(shift_by))
    if to_current:
        targets.append(Current.CURRENT)
    if len(targets) != 1:
        raise UsageRefused(
            "say where to, once: --to-earliest, --to-latest, --to-offset, --to-time,"
            " --by-duration, --shift-by or --to-current"
        )
    return targets[0]


# Asking


def _ask(broker: str, question: Callable[[Client], Awaitable[Result]]) -> Result:
    """Where nobody answers at all, say so at once: a coordinator that moves is waited for."""

    async def reachable(client: Client) -> Result:
        await client.describe([])
        return await question(client)

    return ask(broker, reachable)


async def _describe(
    client: Client, names: Sequence[str]
) -> tuple[list[GroupProgress], list[NoSuchGroup]]:
    """These groups in their order or all, and those that there are not."""
    view = await client.describe(None)
    asked = list(dict.fromkeys(names)) or [
        listed.group_id for listed in await groups.list_groups(client)
    ]
    described, problems = list[GroupProgress](), list[NoSuchGroup]()
    progress = terminal.Progress(SystemClock())
    for name in asked:
        progress.show(f"{len(described)} of {len(asked)} groups")
        try:
            described.append(await describe_progress(client, view, name))
        except NoSuchGroup as problem:
            if names:  # otherwise it has gone since it was listed
                problems.append(problem)
    progress.clear()
    return described, problems


async def _check_unused(client: Client, name: str, *, must_exist: bool) -> None:
    """Members would commit over what is set here."""
    try:
        group = await groups.describe_group(client, name)
    except NoSuchGroup:
        if must_exist:
            raise
        terminal.note(f"there is no group {name} yet")
        return
    if group.state != _EMPTY:
        raise _in_use(name, f"{group.state}, {format_count(len(group.members), 'member')}")


def _in_use(name: str, detail: str) -> Refused:
    return Refused(
        ErrorCode.NON_EMPTY_GROUP,
        f"group {name}",
        f"it is in use ({detail}): stop its consumers first, nothing was changed",
    )


async def _plan(
    client: Client, name: str, target: Target, choices: dict[str, frozenset[int] | None]
) -> list[Reset]:
    committed = await groups.committed_offsets(client, name)
    tps = await _choose_partitions(client, choices) if choices else sorted(committed)
    if not tps:
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND, f"group {name}", "it has committed nothing: use --topic"
        )
    return plan_reset(target, await gather_facts(client, target, tps, committed))


async def _choose_partitions(
    client: Client, choices: dict[str, frozenset[int] | None]
) -> list[TopicPartition]:
    view = await client.describe(list(choices))
    tps = list[TopicPartition]()
    for topic, wanted in choices.items():
        count = len(view.topics[topic].partitions)
        if wrong := [index for index in sorted(wanted or ()) if index >= count]:
            raise UsageRefused(f"there is no partition {wrong[0]}, topic {topic} has {count}")
        indexes = range(count) if wanted is None else sorted(wanted)
        tps += [TopicPartition(topic, index) for index in indexes]
    return tps


async def _commit(client: Client, name: str, news: dict[TopicPartition, Offset]) -> None:
    try:
        await groups.commit_offsets(client, name, news)
    except Refused as problem:
        if problem.code is ErrorCode.UNKNOWN_MEMBER_ID:  # somebody has joined since we looked
            raise _in_use(name, "a member has just joined") from None
        raise


async def _delete_offsets(
    client: Client, name: str, choices: dict[str, frozenset[int] | None]
) -> list[ClientError]:
    committed = await groups.committed_offsets(client, name)
    problems = list[ClientError]()
    doomed = list[TopicPartition]()
    for topic, wanted in choices.items():
        found = [
            tp
            for tp in committed
            if tp.topic == topic and (wanted is None or tp.partition in wanted)
        ]
        if not found:
            subject = f"group {name}, topic {topic}"
            problems.append(
                Refused(ErrorCode.GROUP_ID_NOT_FOUND, subject, "nothing is committed for it")
            )
        doomed += sorted(found)
    if doomed:
        refused = await groups.delete_offsets(client, name, doomed)
        problems += refused.values()
        if deleted := [tp for tp in doomed if tp not in refused]:
            terminal.note(f"group {name}: offsets of {format_partitions(deleted)} deleted")
    return problems


# Showing


def _heading(progress: GroupProgress) -> str:
    group = progress.group
    unknown = progress.unknown_count
    lag = f"lag {progress.lag}" + (f" and unknown of {unknown}" if unknown else "")
    return terminal.one_line(
        f"group {group.group_id}: {group.type.lower()}, {group.state},"
        f" {format_count(len(group.members), 'member')}, {lag}, coordinator {group.coordinator}"
    )


def _write_partitions(progress: GroupProgress) -> None:
    terminal.write_table(
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST"],
        [
            [
                partition.tp.topic,
                str(partition.tp.partition),
                _number(partition.committed_offset),
                "?" if partition.end_offset is None else str(partition.end_offset),
                _number(partition.lag),
                *(
                    ["-", "-", "-"]
                    if partition.owner is None
                    else map(
                        terminal.one_line,
                        [
                            partition.owner.member_id,
                            partition.owner.client_id,
                            partition.owner.host,
                        ],
                    )
                ),
            ]
            for partition in progress.partitions
        ],
    )


def _write_members(progress: GroupProgress) -> None:
    terminal.write_table(
        ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS", "ASSIGNMENT"],
        [
            [
                terminal.one_line(member.member_id),
                terminal.one_line(member.instance_id or "-"),
                terminal.one_line(member.client_id),
                terminal.one_line(member.host),
                "?" if member.partitions is None else str(len(member.partitions)),
                format_partitions(member.partitions or ()) or "-",
            ]
            for member in progress.group.members
        ],
    )


def _write_states(described: Sequence[GroupProgress]) -> None:
    terminal.write_table(
        ["GROUP", "TYPE", "STATE", "PROTOCOL", "ASSIGNOR", "COORDINATOR", "MEMBERS", "LAG"],
        [
            [
                terminal.one_line(progress.group.group_id),
                progress.group.type,
                progress.group.state,
                terminal.one_line(progress.group.protocol_type) or "-",
                terminal.one_line(progress.group.assignor) or "-",
                str(progress.group.coordinator),
                str(len(progress.group.members)),
                str(progress.lag),
            ]
            for progress in described
        ],
    )


def _write_plan(name: str, plan: Sequence[Reset], *, dry_run: bool, json: bool) -> None:
    if json:
        for reset in plan:
            done = reset.new is not None and not dry_run
            terminal.write_json({"group": name, **reset.as_json(), "committed": done})
    else:
        terminal.write_table(
            ["TOPIC", "PARTITION", "CURRENT", "NEW", "NOTE"],
            [
                [
                    reset.tp.topic,
                    str(reset.tp.partition),
                    _number(reset.current),
                    _number(reset.new),
                    reset.note,
                ]
                for reset in plan
            ],
        )
    count = sum(reset.new is not None for reset in plan)
    if dry_run:
        terminal.note(
            f"group {name}: {format_count(count, 'offset')} would be set; nothing was changed"
        )
    else:
        terminal.note(f"group {name}: {format_count(count, 'offset')} set")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
