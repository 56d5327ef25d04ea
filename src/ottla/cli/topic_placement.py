"""`ottla topic reassign` and `ottla topic elect`: where replicas are, and which of them lead."""

import json as jsonlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.moves import Refusals, carry_out, print_refusals
from ottla.cli.options import Broker, Json
from ottla.cli.partition_choice import choose_partitions
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.placement import (
    PREFERRED,
    UNCLEAN,
    Move,
    elect_leaders,
    list_moves,
    move_partitions,
)
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import BrokerId, TopicPartition

OptionalTopic = Annotated[
    str, typer.Argument(metavar="NAME", help="Topic name; default: all topics.")
]
Partitions = Annotated[
    list[int],
    typer.Option("--partition", min=0, metavar="P", help="Only this partition; repeatable."),
]
Targets = Mapping[TopicPartition, Sequence[BrokerId]]


def reassign(
    name: OptionalTopic = "",
    partition: Partitions = [],  # noqa: B006  typer copies it
    to: Annotated[
        str,
        typer.Option("--to", metavar="IDS", help="Brokers for the replicas, the leader first."),
    ] = "",
    file: Annotated[
        str,
        typer.Option(
            "--file", metavar="FILE", help="Moves in Kafka's JSON format, as --json prints them."
        ),
    ] = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel moves, of all topics or of those named.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until the partitions have moved.")
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Move partitions to other brokers, or cancel moves; without options list those under way.

    \b
    Examples:
      ottla topic reassign
      ottla topic reassign orders --to 1,2,3
      ottla topic reassign orders --partition 0 --to 4,2 --follow
      ottla topic reassign --file moves.json
      ottla topic reassign orders --cancel
    """
    _check_options(name, partition, to, file, cancel=cancel, follow=follow)
    choice = {name: frozenset(partition) or None} if name else {}
    if cancel:
        return _cancel(broker, choice)
    if not (to or file):
        return _list(broker, name, is_json=json)
    replicas, moves = _parse_brokers(to), _read_moves(file)

    async def work(client: Client) -> tuple[int, Refusals]:
        targets = moves or dict.fromkeys(await choose_partitions(client, choice), replicas)
        if follow:
            return len(targets), await carry_out(client, targets, is_followed=True)
        return len(targets), await move_partitions(client, targets)

    count, refused = run_with_client(broker, work)
    begun = terminal.counted(count - len(refused), "partition")
    if count > len(refused):
        terminal.print_note(f"{begun} moved" if follow else f"{begun} being moved")
    print_refusals(refused)
    return FAILED if refused else OK


def elect(
    name: OptionalTopic = "",
    partition: Partitions = [],  # noqa: B006  typer copies it
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where there is no leader let any live replica lead, and lose what it lacks.",
        ),
    ] = False,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Let the first replica of partitions lead them; without a name, of all that it does not lead.

    \b
    Examples:
      ottla topic elect
      ottla topic elect orders --partition 0
      ottla topic elect orders --unclean
    """
    if partition and not name:
        raise UsageRefused("--partition needs the name of a topic")

    async def work(client: Client) -> tuple[list[TopicPartition], Refusals]:
        tps = None
        if name:
            tps = await choose_partitions(client, {name: frozenset(partition) or None})
        return await elect_leaders(client, tps, UNCLEAN if unclean else PREFERRED)

    elected, refused = run_with_client(broker, work)
    needless = ErrorCode.ELECTION_NOT_NEEDED
    refused = {tp: one for tp, one in refused.items() if one.code is not needless}
    if json:
        for tp in elected:
            terminal.write_json({"topic": tp.topic, "partition": tp.partition})
    else:
        terminal.print_note(f"{terminal.counted(len(elected), 'leader')} elected")
    print_refusals(refused)
    return FAILED if refused else OK


def _check_options(
    name: str, partition: list[int], to: str, file: str, *, cancel: bool, follow: bool
) -> None:
    if bool(to) + bool(file) + cancel > 1:
        raise UsageRefused("one of --to, --file and --cancel, not several")
    if to and not name:
        raise UsageRefused("--to needs the name of a topic")
    if file and name:
        raise UsageRefused("--file names its topics itself: leave out the name")
    if partition and not name:
        raise UsageRefused("--partition needs the name of a topic")
    if follow and not (to or file):
        raise UsageRefused("--follow needs --to or --file")


def _list(broker: str, name: str, *, is_json: bool) -> int:
    moves = run_with_client(broker, list_moves)
    shown = {tp: move for tp, move in sorted(moves.items()) if not name or tp.topic == name}
    if is_json:
        terminal.write_json({"version": 1, "partitions": [_as_json(*row) for row in shown.items()]})
        return OK
    terminal.write_table(
        ["TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"],
        [
            [tp.topic, str(tp.partition), *map(_join, (one.replicas, one.adding, one.removing))]
            for tp, one in shown.items()
        ],
    )
    return OK


def _as_json(tp: TopicPartition, move: Move) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "replicas": move.target,
        "adding": move.adding,
        "removing": move.removing,
    }


def _cancel(broker: str, choice: Mapping[str, frozenset[int] | None]) -> int:
    async def work(client: Client) -> tuple[int, Refusals]:
        moves = list(await list_moves(client))
        if choice:
            chosen = set(await choose_partitions(client, choice))
            moves = [tp for tp in moves if tp in chosen]
        return len(moves), await move_partitions(client, dict.fromkeys(moves))

    count, refused = run_with_client(broker, work)
    terminal.print_note(f"{terminal.counted(count - len(refused), 'move')} cancelled")
    print_refusals(refused)
    return FAILED if refused else OK


def _parse_brokers(text: str) -> list[BrokerId]:
    words = text.split(",") if text else []
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise UsageRefused(f"--to {text!r} is not a list of broker ids, such as 1,2,3")
    return [BrokerId(int(word)) for word in words]


def _read_moves(file: str) -> Targets:
    """The moves in a file as `kafka-reassign-partitions` reads and writes it."""
    if not file:
        return {}
    try:
        content = jsonlib.loads(Path(file).read_text())
        moves = {
            TopicPartition(str(one["topic"]), int(one["partition"])): [
                BrokerId(int(replica)) for replica in one["replicas"]
            ]
            for one in content["partitions"]
        }
    except OSError as problem:
        raise UsageRefused(f"--file {file}: {problem.strerror or problem}") from None
    except (ValueError, TypeError, KeyError) as problem:
        raise UsageRefused(
            f'--file {file} is not {{"version": 1, "partitions": [{{"topic": ..., "partition": 0,'
            f' "replicas": [1, 2]}}, ...]}}: {type(problem).__name__} {problem}'
        ) from None
    if not moves:
        raise UsageRefused(f"--file {file} names no partitions")
    return moves


def _join(brokers: Sequence[BrokerId]) -> str:
    return ",".join(map(str, brokers)) or "none"
