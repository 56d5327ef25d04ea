"""`ottla rebalance`: spread replicas and leaders evenly over the brokers."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.moves import Refusals, carry_out, print_refusals
from ottla.cli.options import Broker, Json
from ottla.cli.run_client import run_with_client
from ottla.cli.throttle import throttled
from ottla.client.client import Client
from ottla.client.cluster_description import describe_cluster
from ottla.client.errors import Refused
from ottla.client.placement import PREFERRED, elect_leaders, list_moves
from ottla.cluster.balance import Placement, balance
from ottla.errors import ErrorCode, UsageRefused
from ottla.model import BrokerId, TopicPartition

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def rebalance(
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show what would be moved; the default.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the partitions, and wait until all have moved.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="With --execute: name each partition that has moved.")
    ] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="With --execute: bytes that each broker copies in a second, until all have moved.",
        ),
    ] = None,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Spread replicas and leaders evenly over the brokers, with as few moves as possible.

    Brokers that are dead or being drained get nothing. Replicas of a partition stay in as many
    racks and on as many machines as they are. The cluster moves `reassignment.concurrent.max`
    partitions at a time; Ctrl-C begins no more moves, and those that have begun go on, without
    the limit of --throttle. That is `replication.catchup.bytes.per.s` of all brokers meanwhile.

    \b
    Examples:
      ottla rebalance
      ottla rebalance --json | jq -r .partition
      ottla rebalance --execute --follow
      ottla rebalance --execute --throttle 10000000
    """
    if plan and execute:
        raise UsageRefused("either --plan or --execute, not both")
    if follow and not execute:
        raise UsageRefused("--follow needs --execute")
    if throttle is not None and not execute:
        raise UsageRefused("--throttle needs --execute")

    async def work(client: Client) -> tuple[Placement, Placement, Refusals]:
        placed, wanted = await _plan(client)
        if not execute:
            return placed, wanted, {}
        async with throttled(client, throttle if wanted else None):
            refused = await carry_out(client, wanted, is_followed=follow)
        moved = [tp for tp in wanted if tp not in refused]
        if moved:
            _, unled = await elect_leaders(client, moved, PREFERRED)
            needless = ErrorCode.ELECTION_NOT_NEEDED
            refused |= {tp: problem for tp, problem in unled.items() if problem.code != needless}
        return placed, wanted, refused

    placed, wanted, refused = run_with_client(broker, work)
    _show(placed, wanted, is_json=json, is_done=execute)
    print_refusals(refused)
    return FAILED if refused else OK


async def _plan(client: Client) -> tuple[Placement, Placement]:
    """The partitions as they are, and the new replicas of those that are to change."""
    described = await describe_cluster(client, has_dead=True)
    moving = await list_moves(client)
    if moving:
        raise Refused(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            "the cluster",
            f"{terminal.counted(len(moving), 'partition')} moving already: wait for the end, or"
            " `ottla topic reassign --cancel` them",
        )
    view = await client.describe(None)
    placed = {
        TopicPartition(topic.name, partition.index): partition.replicas
        for topic in view.topics.values()
        for partition in topic.partitions
    }
    sites = {one.id: one for one in described.brokers}
    active = [one.id for one in described.brokers if one.is_alive and not one.is_draining]
    return placed, balance(placed, sites, active)


def _show(
    placed: Mapping[TopicPartition, tuple[BrokerId, ...]],
    wanted: Placement,
    *,
    is_json: bool,
    is_done: bool,
) -> None:
    rows = [_row(tp, placed[tp], new) for tp, new in sorted(wanted.items())]
    if is_json:
        for row in rows:
            terminal.write_json(row)
        return
    if not rows:
        terminal.print_note("replicas and leaders are spread evenly: nothing to move")
        return
    if not is_done:
        terminal.write_table(
            ["TOPIC", "PARTITION", "REPLICAS", "NEW REPLICAS"],
            [
                [row["topic"], str(row["partition"]), _join(row["replicas"]), _join(row["target"])]
                for row in rows
            ],
        )
    copies = sum(len(set(row["target"]) - set(row["replicas"])) for row in rows)
    verb = "changed" if is_done else "to change"
    partitions = terminal.counted(len(rows), "partition")
    moved = terminal.counted(copies, "replica")
    terminal.print_note(f"{partitions} {verb}, {moved} of them on other brokers")


def _row(
    tp: TopicPartition, old: tuple[BrokerId, ...], new: tuple[BrokerId, ...]
) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition, "replicas": old, "target": new}


def _join(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers))
