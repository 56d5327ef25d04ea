"""`ottla group`: list, describe, reset and delete groups of consumers."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, TypeVar

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.group.description import (
    GroupProgress,
    describe_progress,
    format_partitions,
)
from ottla.cli.group.display import (
    heading,
    write_members,
    write_partitions,
    write_plan,
    write_states,
)
from ottla.cli.group.offset_reset import Reset, Target, choose_target, gather_facts, plan_reset
from ottla.cli.options import Broker, Json, parse_topic_choices
from ottla.cli.partition_choice import choose_partitions
from ottla.cli.run_client import run_with_client, with_hint
from ottla.client import group_offsets, groups, share_offsets
from ottla.client.client import Client
from ottla.client.errors import ClientError, NoSuchGroup, Refused
from ottla.clock import SystemClock
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import Offset, TopicPartition

app = typer.Typer(
    rich_markup_mode=None, help="List, describe, reset and delete groups of consumers."
)

_STATES: Final = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"),
    *("Assigning", "Reconciling", "NotReady", "Dead"),
)
_TYPES: Final = ("Classic", "Consumer", "Share", "Streams")
_EMPTY: Final = "Empty"  # the state of a group without members

Result = TypeVar("Result")
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Group id.")]
TopicChoices = Annotated[
    list[str],
    typer.Option(
        "--topic", metavar="TOPIC[:P,P...]", help="Topic, or some of its partitions; repeatable."
    ),
]


@app.command("list")
def list_groups(
    state: Annotated[
        list[str],
        typer.Option("--state", metavar="STATE", help="Only groups in this state; repeatable."),
    ] = [],  # noqa: B006  typer copies it
    kind: Annotated[
        list[str],
        typer.Option("--type", metavar="TYPE", help="Only groups of this type; repeatable."),
    ] = [],  # noqa: B006  typer copies it
    protocol: Annotated[
        list[str],
        typer.Option(
            "--protocol", metavar="NAME", help="Only this protocol type, such as consumer."
        ),
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
        for group in _run_reachable(broker, groups.list_groups)
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
        list[str], typer.Argument(metavar="[GROUP]...", help="Group ids; default: all groups.")
    ] = [],  # noqa: B006  typer copies it
    members: Annotated[
        bool, typer.Option("--members", help="Show the members instead of the partitions.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show only the state, one line per group.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show committed offsets, lag and owner of each partition of groups.

    LAG is the number of records between the committed offset and the end of the log. With --json
    each group is one object with everything.

    \b
    Examples:
      ottla group describe billing
      ottla group describe billing --members
      ottla group describe --state
      ottla group describe billing --json | jq .lag
    """
    if members and state:
        raise UsageRefused("--members and --state exclude each other: leave one out")
    described, problems = _run_reachable(broker, lambda client: _describe(client, names))
    if json:
        for progress in described:
            terminal.write_json(progress.as_json())
    elif state:
        write_states(described)
    else:
        for position, progress in enumerate(described):
            if position:
                terminal.write_lines([""])
            terminal.write_lines([heading(progress)])
            (write_members if members else write_partitions)(progress)
    for problem in problems:
        terminal.print_error(str(problem))
    return FAILED if problems else OK


AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="Every topic with committed offsets of the group.")
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")]
ToOffset = Annotated[int | None, typer.Option(min=0, metavar="N", help="To this offset.")]
ToTime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="To the first record from this time on (2026-11-15T00:00Z)."),
]
ByDuration = Annotated[
    str | None, typer.Option(metavar="DURATION", help="To this long ago, such as 2h or 1d12h.")
]
ShiftBy = Annotated[
    int | None, typer.Option(metavar="N", help="Forward by N offsets, back if negative.")
]
ToCurrent = Annotated[
    bool,
    typer.Option("--to-current", help="To the committed offset; to the end if there is none."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]


@app.command("reset-offsets")
def reset_offsets(
    name: GroupName,
    topic: TopicChoices = [],  # noqa: B006  typer copies it
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_time: ToTime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    to_current: ToCurrent = False,
    dry_run: DryRun = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Set the committed offsets of a group without members: stop its consumers first.

    Of a share group the start offsets are set: it gets every record from there on.

    Shows each partition with its offset before and after. An offset out of range is moved to the
    nearest end of the log, with a note. A group that does not exist is created.

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
        raise UsageRefused("name the topics: either --topic (repeatable) or --all-topics")
    choices = parse_topic_choices("--topic", topic)

    async def work(client: Client) -> list[Reset]:
        is_share = await _check_unused(client, name, must_exist=all_topics)
        plan = await _plan(client, name, target, choices, is_share=is_share)
        offsets = {reset.tp: reset.new for reset in plan if reset.new is not None}
        if offsets and not dry_run:
            if is_share:
                await share_offsets.alter_share_offsets(client, name, offsets)
            else:
                await _commit(client, name, offsets)
        return plan

    plan = _run_reachable(broker, work)
    write_plan(name, plan, dry_run=dry_run, json=json)
    return OK


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Group ids.")],
    topic: TopicChoices = [],  # noqa: B006  typer copies it
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    broker: Broker = "",
) -> int:
    """Delete groups without members, or with --topic only their committed offsets of topics.

    Asks for confirmation on a terminal.

    \b
    Examples:
      ottla group delete billing
      ottla group delete billing --topic orders
      ottla group delete billing --topic orders:0,1 --yes
    """
    choices = parse_topic_choices("--topic", topic)
    if not yes and sys.stdin.isatty():
        what = f"the offsets of {', '.join(choices)} in " if choices else ""
        typer.confirm(f"Delete {what}{', '.join(names)}?", abort=True, err=True)

    async def work(client: Client) -> list[ClientError]:
        problems = list[ClientError]()
        progress = terminal.Progress(SystemClock())
        for count, name in enumerate(names):
            progress.show(f"{count} of {len(names)} groups")
            try:
                if choices:
                    problems += await _delete_offsets(client, name, choices)
                else:
                    await groups.delete_group(client, name)
                    terminal.print_note(f"group {name} deleted")
            except Refused as problem:
                problems.append(problem)
        progress.clear()
        return problems

    problems = _run_reachable(broker, work)
    for problem in problems:
        terminal.print_error(str(problem))
    return FAILED if problems else OK


def _known_words(option: str, words: Sequence[str], known: Sequence[str]) -> frozenset[str]:
    """The words in lower case; one that is not in `known` is refused."""
    lowered = {word.lower() for word in known}
    for word in words:
        if word.lower() not in lowered:
            raise UsageRefused(f"{option} {word!r}: choose one of {', '.join(known)}")
    return frozenset(word.lower() for word in words)


def _run_reachable(broker: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    """Run `work`, but fail at once if no broker is reachable: coordinators are waited for."""

    async def reachable(client: Client) -> Result:
        await client.describe([])
        return await work(client)

    return run_with_client(broker, reachable)


async def _describe(
    client: Client, names: Sequence[str]
) -> tuple[list[GroupProgress], list[Refused]]:
    """The named groups in order, or all groups; and the errors of unknown ones."""
    view = await client.describe(None)
    wanted = list(dict.fromkeys(names)) or [
        listed.group_id for listed in await groups.list_groups(client)
    ]
    described, problems = list[GroupProgress](), list[Refused]()
    progress = terminal.Progress(SystemClock())
    for name in wanted:
        progress.show(f"{len(described)} of {len(wanted)} groups")
        try:
            described.append(await describe_progress(client, view, name))
        except NoSuchGroup as problem:
            if names:  # otherwise it was deleted since it was listed
                problems.append(await with_hint(client, problem))
    progress.clear()
    return described, problems


async def _check_unused(client: Client, name: str, *, must_exist: bool) -> bool:
    """Refuse a group with members, which would overwrite the offsets; True for a share group."""
    try:
        group = await groups.describe_group(client, name)
    except NoSuchGroup:
        if must_exist:
            raise
        terminal.print_note(f"group {name} does not exist yet")
        return False
    if group.state != _EMPTY:
        raise _in_use(name, f"{group.state}, {terminal.counted(len(group.members), 'member')}")
    return group.type == groups.SHARE_TYPE


def _in_use(name: str, detail: str) -> Refused:
    return Refused(
        ErrorCode.NON_EMPTY_GROUP,
        f"group {name}",
        f"it is in use ({detail}): stop its consumers first; nothing was changed",
    )


async def _plan(
    client: Client,
    name: str,
    target: Target,
    choices: dict[str, frozenset[int] | None],
    *,
    is_share: bool,
) -> list[Reset]:
    if is_share:
        found = await share_offsets.describe_share_offsets(client, name)
        committed = {tp: offset.start for tp, offset in found.items() if offset.start is not None}
    else:
        committed = await group_offsets.committed_offsets(client, name)
    tps = await choose_partitions(client, choices) if choices else sorted(committed)
    if not tps:
        raise Refused(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"group {name}",
            "it has no committed offsets: use --topic",
        )
    return plan_reset(target, await gather_facts(client, target, tps, committed))


async def _commit(client: Client, name: str, offsets: dict[TopicPartition, Offset]) -> None:
    try:
        await group_offsets.commit_offsets(client, name, offsets)
    except Refused as problem:
        if problem.code is ErrorCode.UNKNOWN_MEMBER_ID:  # a member joined since the check
            raise _in_use(name, "a member has just joined") from None
        raise


async def _delete_offsets(
    client: Client, name: str, choices: dict[str, frozenset[int] | None]
) -> list[ClientError]:
    if (await groups.describe_group(client, name)).type == groups.SHARE_TYPE:
        return await _delete_share_offsets(client, name, choices)
    committed = await group_offsets.committed_offsets(client, name)
    problems = list[ClientError]()
    deletable = list[TopicPartition]()
    for topic, wanted in choices.items():
        found = [
            tp
            for tp in committed
            if tp.topic == topic and (wanted is None or tp.partition in wanted)
        ]
        if not found:
            subject = f"group {name}, topic {topic}"
            problems.append(
                Refused(ErrorCode.GROUP_ID_NOT_FOUND, subject, "no offset is committed")
            )
        deletable += sorted(found)
    if deletable:
        refused = await group_offsets.delete_offsets(client, name, deletable)
        problems += refused.values()
        if deleted := [tp for tp in deletable if tp not in refused]:
            terminal.print_note(f"group {name}: offsets of {format_partitions(deleted)} deleted")
    return problems


async def _delete_share_offsets(
    client: Client, name: str, choices: dict[str, frozenset[int] | None]
) -> list[ClientError]:
    if any(partitions is not None for partitions in choices.values()):
        raise UsageRefused("offsets of a share group are deleted by topic: leave out partitions")
    refused = await share_offsets.delete_share_offsets(client, name, choices)
    if deleted := [topic for topic in choices if topic not in refused]:
        terminal.print_note(f"group {name}: offsets of {', '.join(deleted)} deleted")
    return list(refused.values())
