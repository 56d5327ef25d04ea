"""`ottla cluster`: shows the cluster, and how well it is."""

from collections.abc import Sequence
from typing import Final

import typer

from ottla.cli import terminal
from ottla.cli.cluster_status import ClusterStatus, Health, cluster_status
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.cluster_description import (
    ClusterDescription,
    FeatureDescription,
    describe_cluster,
    features_of,
)
from ottla.client.errors import ClusterUnreachable
from ottla.model import TopicPartition

app = typer.Typer(rich_markup_mode=None, help="Show the cluster.")


_STATUS_CODES: Final = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.OFFLINE: 2}
_UNREACHABLE: Final = 2
_SHOWN: Final = 5  # partitions by name, of each kind


@app.callback()
def cluster() -> None:
    """Show the cluster."""


@app.command()
def info(json: Json = False, broker: Broker = "") -> int:
    """Show the cluster's id, its controller, its brokers and its features.

    \b
    Examples:
      ottla cluster info
      ottla cluster info --json | jq -r .id
    """

    async def work(client: Client) -> tuple[ClusterDescription, list[FeatureDescription]]:
        return await describe_cluster(client), await features_of(client)

    described, features = run_with_client(broker, work)
    if json:
        terminal.write_json(
            {
                "id": described.id,
                "controller": described.controller,
                "brokers": [item.id for item in described.brokers],
                "features": {
                    item.name: {
                        "level": item.level,
                        "min_supported": item.supported[0],
                        "max_supported": item.supported[1],
                    }
                    for item in features
                },
            }
        )
        return OK
    controller = "none" if described.controller is None else str(described.controller)
    ids = ", ".join(str(item.id) for item in described.brokers)
    terminal.write_lines([f"cluster {described.id}  controller {controller}  brokers {ids}"])
    terminal.write_table(
        ["FEATURE", "LEVEL", "SUPPORTED"],
        [
            [item.name, str(item.level), f"{item.supported[0]} to {item.supported[1]}"]
            for item in features
        ],
    )
    return OK


@app.command()
def status(json: Json = False, broker: Broker = "") -> int:
    """Show whether the cluster is healthy, and what is wrong if it is not.

    \b
    Exit codes:
      0  healthy: every broker is alive, and every replica is in sync
      1  degraded: a broker is dead, or a replica is not in sync; clients go on
      2  offline: a partition has no leader, or no broker can be reached

    \b
    Examples:
      ottla cluster status
      ottla cluster status --json | jq -r .health
    """
    try:
        found = run_with_client(broker, cluster_status)
    except ClusterUnreachable as problem:
        terminal.print_error(str(problem))
        return _UNREACHABLE
    if json:
        terminal.write_json(found.as_json())
    else:
        terminal.write_lines(_status_lines(found))
    return _STATUS_CODES[found.health]


def _status_lines(found: ClusterStatus) -> list[str]:
    controller = "none" if found.controller is None else str(found.controller)
    brokers = f"brokers: {_numbers(found.alive)} alive"
    if found.dead:
        brokers += f", {_numbers(found.dead)} dead"
    if found.draining:
        brokers += f", {_numbers(found.draining)} being drained"
    kinds = {
        "offline": found.offline,
        "not fully in sync": found.under_replicated,
        "moving": found.moving,
        "not led by their first replica": found.not_preferred,
    }
    return [
        f"cluster {found.id} is {found.health}  controller {controller}",
        brokers,
        f"partitions: {found.partition_count}",
        *(f"  {len(tps)} {kind}: {_names(tps)}" for kind, tps in kinds.items() if tps),
    ]


def _numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _names(tps: Sequence[TopicPartition]) -> str:
    more = f" and {len(tps) - _SHOWN} more" if len(tps) > _SHOWN else ""
    return ", ".join(map(str, tps[:_SHOWN])) + more
