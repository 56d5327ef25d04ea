"""`ottla log strays` and `ottla log accept-store`: repair the directory of a stopped broker."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.options import Json
from ottla.errors import ApiError, UsageRefused
from ottla.model import BrokerId, TopicPartition, format_uuid, topic_name_problem

if TYPE_CHECKING:  # most commands do not need the broker, which is slow to import
    from ottla.broker.offline import Acceptance, DoubtfulStore, Stray

app = typer.Typer(
    rich_markup_mode=None,
    help="List, adopt or delete logs that a broker has set aside as unknown.",
)

Data = Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of the broker.")]
Names = Annotated[list[str], typer.Argument(metavar="STRAY...", help="Names of strays, as listed.")]
All = Annotated[bool, typer.Option("--all", help="All strays.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command(name="list")
def list_strays(data: Data, json: Json = False) -> int:
    """List the logs that were set aside, and whether they can be adopted. Stop the broker first.

    \b
    Examples:
      ottla log strays list data
    """

    from ottla.broker.offline import open_strays  # noqa: PLC0415

    async def work() -> "list[Stray]":
        async with open_strays(data) as strays:
            return strays.found()

    found = asyncio.run(work())
    if json:
        for stray in found:
            terminal.write_json(_fields(stray))
    elif found:
        rows = [_fields(stray) for stray in found]
        terminal.write_table(
            ["STRAY", "TOPIC ID", "SIZE", "CAN BE ADOPTED"],
            [
                [
                    row["stray"],
                    row["topic_id"] or "?",
                    terminal.format_size(row["size_bytes"]),
                    "yes" if row["problem"] is None else f"no: {row['problem']}",
                ]
                for row in rows
            ],
        )
    else:
        terminal.print_note("no strays")
    return OK


@app.command()
def adopt(
    data: Data,
    names: Names = [],  # noqa: B006  typer copies it
    all_: All = False,
    topic: Annotated[
        str,
        typer.Option("--as", metavar="TOPIC", help="Adopt under another topic name."),
    ] = "",
    json: Json = False,
) -> int:
    """Return strays to their topics. Stop the broker first.

    A topic that the store has lost is created again with its id and its partitions. Its settings
    are lost: it keeps its records without limit until `ottla topic alter` changes that.

    \b
    Examples:
      ottla log strays adopt data --all
      ottla log strays adopt data orders-0.00000000000000000000000000000000-stray --as old-orders
    """
    _check_choice(names, all_=all_)
    if topic and (problem := topic_name_problem(topic)):
        raise UsageRefused(f"--as {topic!r}: {problem}")

    from ottla.broker.offline import open_strays  # noqa: PLC0415

    async def work() -> "list[tuple[Stray, TopicPartition | ApiError | UsageRefused]]":
        async with open_strays(data) as strays:
            results: list[tuple[Stray, TopicPartition | ApiError | UsageRefused]] = []
            for stray in strays.found() if all_ else strays.find(names):
                try:
                    results.append((stray, await strays.adopt(stray, topic or None)))
                except (ApiError, UsageRefused) as problem:
                    results.append((stray, problem))
            return results

    results = asyncio.run(work())
    for stray, result in results:
        if isinstance(result, TopicPartition):
            terminal.print_note(f"{stray.directory} is {result} again")
        else:
            terminal.print_error(f"{stray.directory} was not adopted: {result}")
        if json:
            is_adopted = isinstance(result, TopicPartition)
            problem = None if is_adopted else str(result)
            terminal.write_json(_fields(stray) | {"adopted": is_adopted, "problem": problem})
    return OK if all(isinstance(result, TopicPartition) for _, result in results) else FAILED


@app.command()
def purge(
    data: Data,
    names: Names = [],  # noqa: B006  typer copies it
    all_: All = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Delete strays with all their records permanently. Stop the broker first.

    \b
    Examples:
      ottla log strays purge data orders-0.00000000000000000000000000000000-stray
      ottla log strays purge data --all --yes
    """
    from ottla.broker.offline import open_strays  # noqa: PLC0415

    _check_choice(names, all_=all_)

    async def work() -> bool:
        async with open_strays(data) as strays:
            chosen = strays.found() if all_ else strays.find(names)
            size_bytes = sum(stray.size_bytes for stray in chosen)
            what = f"{terminal.counted(len(chosen), 'stray')}, {terminal.format_size(size_bytes)}"
            _confirm(f"Delete {what} permanently?", yes=yes)
            is_done = True
            for stray in chosen:
                try:
                    strays.purge(stray)
                except UsageRefused as problem:
                    terminal.print_error(str(problem))
                    is_done = False
                    continue
                terminal.print_note(f"{stray.directory} removed")
                if json:
                    terminal.write_json(_fields(stray))
            return is_done

    return OK if asyncio.run(work()) else FAILED


def accept_store(
    data: Data,
    node_id: Annotated[
        int,
        typer.Option(
            "--node-id", metavar="N", help="Broker id, if the directory does not have it."
        ),
    ] = 0,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Accept a store that a broker refuses: an older copy, a damaged one, or none.

    Prints the plan and asks for confirmation. No record is removed: logs that the store does not
    know are set aside at the next start, and `ottla log strays adopt` returns them. Stop the broker
    first.

    \b
    Examples:
      ottla log accept-store data
    """

    from ottla.broker.offline import open_doubtful  # noqa: PLC0415

    async def work() -> None:
        async with open_doubtful(data, BrokerId(node_id)) as store:
            await _accept(store, await store.plan(), yes=yes, json=json)

    asyncio.run(work())
    return OK


async def _accept(store: "DoubtfulStore", plan: "Acceptance", *, yes: bool, json: bool) -> None:
    for sentence in plan.sentences:
        terminal.print_note(sentence)
    _confirm("Accept the store?", yes=yes)
    await store.accept(plan)
    terminal.print_note("the store is accepted: start the broker")
    if json:
        dropped = sorted(plan.dropped)
        terminal.write_json({"revision": plan.revision, "dropped": dropped, "done": plan.sentences})


def _confirm(prompt: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageRefused("standard input is not a terminal to ask for confirmation: use --yes")
    typer.confirm(prompt, abort=True, err=True)


def _check_choice(names: list[str], *, all_: bool) -> None:
    if all_ == bool(names):
        raise UsageRefused("give names of strays or --all, not both")


def _fields(stray: "Stray") -> dict[str, Any]:
    return {
        "stray": stray.directory,
        "topic": stray.name.topic,
        "partition": stray.name.partition,
        "topic_id": None if stray.topic_id is None else format_uuid(stray.topic_id),
        "size_bytes": stray.size_bytes,
        "problem": stray.problem,
    }
