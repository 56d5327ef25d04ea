"""`ottla topic`: make, list, describe, change and delete topics."""

import sys
from typing import Annotated

import typer

from ottla.cli import terminal
from ottla.cli.options import Broker, Json, parse_assignments
from ottla.cli.session import ask
from ottla.cli.status import FAILED, OK
from ottla.cli.topic_description import TopicDescription, describe_topics
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.errors import ClientError, Refused
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import topic_name_problem

app = typer.Typer(rich_markup_mode=None, help="Make, list, describe, change and delete topics.")

TopicName = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]


@app.command()
def create(
    name: TopicName,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many; else the broker's setting.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, max=32767, metavar="N", help="Of each partition; else the broker's setting."
        ),
    ] = None,
    config: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="A setting; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content if the topic is there already.")
    ] = False,
    broker: Broker = "",
) -> int:
    """Make a topic.

    \b
    Examples:
      ottla topic create orders
      ottla topic create orders --partitions 6 --replicas 3
      ottla topic create orders --config retention.ms=86400000 --if-not-exists
    """
    if problem := topic_name_problem(name):
        raise UsageRefused(f"{name!r}: {problem}")
    settings = parse_assignments("--config", config)

    async def question(client: Client) -> None:
        await admin.create_topic(
            client,
            name,
            partitions=partitions or admin.BROKER_DEFAULT,
            replicas=replicas or admin.BROKER_DEFAULT,
            settings=settings,
        )

    try:
        ask(broker, question)
    except Refused as refusal:
        if not (if_not_exists and refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            raise
        terminal.note(f"topic {name} is there already")
        return OK
    terminal.note(f"topic {name} created")
    return OK


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those the brokers keep for themselves.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """List the topics.

    \b
    Examples:
      ottla topic list
      ottla topic list --json | jq -r .name
    """
    view = ask(broker, lambda client: client.describe(None))
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
        list[str], typer.Argument(metavar="[NAME]...", help="Which; all without a name.")
    ] = [],  # noqa: B006  typer copies it
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show partitions, leaders, in-sync replicas, offsets, sizes, and settings of topics' own.

    \b
    Examples:
      ottla topic describe orders
      ottla topic describe orders --json | jq '.partitions[].end_offset'
    """
    described = ask(broker, lambda client: describe_topics(client, names))
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
        int | None, typer.Option(min=1, metavar="N", help="The new total; it can only grow.")
    ] = None,
    assign: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    remove: Annotated[
        list[str],
        typer.Option("--delete", metavar="NAME", help="Back to the default; repeatable."),
    ] = [],  # noqa: B006  typer copies it
    broker: Broker = "",
) -> int:
    """Change a topic's settings or its number of partitions.

    \b
    Examples:
      ottla topic alter orders --partitions 12
      ottla topic alter orders --set retention.ms=3600000 --delete segment.bytes
    """
    settings = parse_assignments("--set", assign)
    if both := settings.keys() & set(remove):
        raise UsageRefused(f"{', '.join(sorted(both))}: either --set or --delete, not both")
    if partitions is None and not settings and not remove:
        raise UsageRefused("nothing to change: give --partitions, --set or --delete")

    async def question(client: Client) -> None:
        if settings or remove:
            await admin.alter_settings(client, name, assign=settings, remove=remove)
        if partitions is not None:
            await admin.grow_topic(client, name, partitions)

    ask(broker, question)
    terminal.note(f"topic {name} changed")
    return OK


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which topics.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    broker: Broker = "",
) -> int:
    """Delete topics and all their records. Asks first when a person is there to answer.

    \b
    Examples:
      ottla topic delete orders
      ottla topic delete orders payments --yes
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(names)} and all records in it?", abort=True, err=True)

    async def question(client: Client) -> list[ClientError]:
        problems = list[ClientError]()
        for name in names:
            try:
                await admin.delete_topic(client, name)
            except Refused as problem:
                problems.append(problem)
            else:
                terminal.note(f"topic {name} deleted")
        return problems

    problems = ask(broker, question)
    for problem in problems:
        terminal.complain(str(problem))
    return FAILED if problems else OK


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
