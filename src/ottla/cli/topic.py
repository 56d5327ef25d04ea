"""`ottla topic`: create, list, describe, alter, move, trim and delete topics."""

import sys
from typing import Annotated

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.options import Broker, Json, parse_assignments
from ottla.cli.run_client import run_with_client, with_hint
from ottla.cli.setting_choice import check_removed
from ottla.cli.topic_description import TopicDescription, describe_topics
from ottla.cli.topic_placement import elect, reassign
from ottla.cli.topic_trim import trim_topic
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.configs import alter_settings, topic_resource
from ottla.client.errors import ClientError, NoSuchTopic, Refused
from ottla.client.positions import parse_log_position
from ottla.clock import SystemClock
from ottla.config.topic import DropWhen
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import topic_name_problem
from ottla.protocol.messages.topics import BROKER_DEFAULT

app = typer.Typer(
    rich_markup_mode=None, help="Create, list, describe, alter, move, trim and delete topics."
)
app.command()(reassign)
app.command()(elect)

TopicName = Annotated[str, typer.Argument(metavar="NAME", help="Topic name.")]


@app.command()
def create(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of partitions; default: the broker's setting."
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=32767,
            metavar="N",
            help="Replicas of each partition; default: the broker's setting.",
        ),
    ] = None,
    config: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="Topic setting; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    broker: Broker = "",
) -> int:
    """Create a topic.

    \b
    Examples:
      ottla topic create orders
      ottla topic create orders --partitions 6 --replicas 3
      ottla topic create orders --config retention.ms=86400000 --if-not-exists
    """
    if problem := topic_name_problem(name):
        raise UsageRefused(f"{name!r}: {problem}")
    settings = parse_assignments("--config", config)

    async def work(client: Client) -> None:
        await admin.create_topic(
            client,
            name,
            partitions=partitions or BROKER_DEFAULT,
            replicas=replicas or BROKER_DEFAULT,
            settings=settings,
        )

    try:
        run_with_client(broker, work)
    except Refused as refusal:
        if not (if_not_exists and refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            raise
        terminal.print_note(f"topic {name} exists already")
        return OK
    terminal.print_note(f"topic {name} created")
    return OK


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also internal topics.")] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """List the topics.

    \b
    Examples:
      ottla topic list
      ottla topic list --json | jq -r .name
    """
    view = run_with_client(broker, lambda client: client.describe(None))
    topics = [view.topics[name] for name in sorted(view.topics)]
    rows = [
        (topic.name, len(topic.partitions), len(topic.partitions[0].replicas))
        for topic in topics
        if topic.partitions and (internal or not topic.is_internal)
    ]
    if json:
        for name, partitions, replicas in rows:
            terminal.write_json({"name": name, "partitions": partitions, "replicas": replicas})
        return OK
    terminal.write_table(
        ["TOPIC", "PARTITIONS", "REPLICAS"],
        [[name, str(partitions), str(replicas)] for name, partitions, replicas in rows],
    )
    return OK


@app.command()
def describe(
    names: Annotated[
        list[str], typer.Argument(metavar="[NAME]...", help="Topic names; default: all topics.")
    ] = [],  # noqa: B006  typer copies it
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show partitions, leaders, in-sync replicas, offsets, sizes and own settings of topics.

    \b
    Examples:
      ottla topic describe orders
      ottla topic describe orders --json | jq '.partitions[].end_offset'
    """
    described = run_with_client(broker, lambda client: describe_topics(client, names))
    for position, topic in enumerate(described):
        if json:
            terminal.write_json(topic.as_json())
            continue
        if position:
            terminal.write_lines([""])
        _write_description(topic)
    return OK


@app.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="New number of partitions; with fewer, the others are sealed, and go when empty.",
        ),
    ] = None,
    drop_when: Annotated[
        DropWhen | None,
        typer.Option(
            "--drop-when",
            help="When records of sealed partitions go: with retention, or once every group"
            " has read them.",
        ),
    ] = None,
    assign: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="Topic setting; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    remove: Annotated[
        list[str],
        typer.Option(
            "--delete", metavar="NAME", help="Setting to return to its default; repeatable."
        ),
    ] = [],  # noqa: B006  typer copies it
    broker: Broker = "",
) -> int:
    """Change a topic's settings or its number of partitions.

    \b
    Examples:
      ottla topic alter orders --partitions 12
      ottla topic alter orders --partitions 3 --drop-when read
      ottla topic alter orders --set retention.ms=3600000 --delete segment.bytes
    """
    settings = parse_assignments("--set", assign)
    if both := settings.keys() & set(remove):
        raise UsageRefused(f"{', '.join(sorted(both))}: either --set or --delete, not both")
    if partitions is None and not settings and not remove:
        raise UsageRefused("nothing to change: give --partitions, --set or --delete")
    if drop_when is not None and partitions is None:
        raise UsageRefused("--drop-when goes with --partitions")
    dropping = {} if drop_when is None else {"partition.drop.when": drop_when.value}

    async def work(client: Client) -> bool:
        await check_removed(client, topic_resource(name), remove)
        if settings or remove:
            await alter_settings(client, topic_resource(name), assign=settings, remove=remove)
        if partitions is None:
            return False
        return await admin.resize_topic(client, name, partitions, dropping)

    is_sealed = run_with_client(broker, work)
    terminal.print_note(f"topic {name} changed")
    if is_sealed:
        terminal.print_note(
            f"partitions from {partitions} on are sealed: they are read as before, go when they"
            " are empty, and records for them go to the others"
        )
    return OK


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Topic names.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    broker: Broker = "",
) -> int:
    """Delete topics and all their records. Asks for confirmation on a terminal.

    \b
    Examples:
      ottla topic delete orders
      ottla topic delete orders payments --yes
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(names)} and all records in it?", abort=True, err=True)

    async def work(client: Client) -> list[ClientError]:
        problems = list[ClientError]()
        for name in names:
            try:
                await admin.delete_topic(client, name)
            except NoSuchTopic as problem:
                problems.append(await with_hint(client, problem))
            except Refused as problem:
                problems.append(problem)
            else:
                terminal.print_note(f"topic {name} deleted")
        return problems

    problems = run_with_client(broker, work)
    for problem in problems:
        terminal.print_error(str(problem))
    return FAILED if problems else OK


@app.command()
def trim(
    name: TopicName,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="POSITION",
            help="First record to keep: an offset, a time, -2h, end.",
        ),
    ],
    partition: Annotated[
        list[int],
        typer.Option("--partition", min=0, metavar="P", help="Only this partition; repeatable."),
    ] = [],  # noqa: B006  typer copies it
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Delete the records before an offset or a time, for good. Asks on a terminal.

    A partition that ends before the offset is an error, and then nothing is deleted.

    \b
    Examples:
      ottla topic trim orders --before -7d
      ottla topic trim orders --partition 0 --before 1042 --yes
      ottla topic trim orders --before 2026-11-15T00:00Z --json
    """
    position = parse_log_position(before, SystemClock().now_ms())
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the records of {name} before {before}?", abort=True, err=True)
    choices = {name: frozenset(partition) or None}
    trimmed = run_with_client(broker, lambda client: trim_topic(client, choices, position))
    if json:
        for item in trimmed:
            terminal.write_json(item.as_json())
        return OK
    terminal.write_table(
        ["PARTITION", "START", "NEW START", "END"],
        [
            [str(item.partition), str(item.before), str(item.start), str(item.end)]
            for item in trimmed
        ],
    )
    return OK


def _write_description(topic: TopicDescription) -> None:
    own = ", ".join(f"{item.name}={item.value}" for item in topic.own_settings) or "all default"
    terminal.write_lines([f"topic {topic.name}  id {topic.id}  settings: {own}"])
    terminal.write_table(
        ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END", "SIZE"],
        [
            [
                str(partition.index),
                "none" if partition.leader is None else str(partition.leader),
                str(partition.leader_epoch),
                ",".join(map(str, partition.replicas)),
                ",".join(map(str, partition.isr)),
                "?" if partition.start_offset is None else str(partition.start_offset),
                "?" if partition.end_offset is None else str(partition.end_offset),
                "?" if partition.size_bytes is None else terminal.format_size(partition.size_bytes),
            ]
            for partition in topic.partitions
        ],
    )
