"""`ottla broker`: lists the brokers of the cluster."""

from collections import Counter

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.cluster_description import ClusterDescription, describe_cluster
from ottla.client.cluster_view import ClusterView
from ottla.model import BrokerId

app = typer.Typer(rich_markup_mode=None, help="List the brokers of the cluster.")


@app.callback()
def broker() -> None:
    """List the brokers of the cluster."""


@app.command("list")
def list_brokers(json: Json = False, broker: Broker = "") -> int:
    """List the brokers with the addresses they advertise, and what they lead and keep.

    \b
    Examples:
      ottla broker list
      ottla broker list --json | jq -r .address
    """

    async def work(client: Client) -> tuple[ClusterDescription, ClusterView]:
        return await describe_cluster(client), await client.describe(None)

    described, view = run_with_client(broker, work)
    leaders, replicas = _count_partitions(view)
    rows = [
        {
            "id": item.id,
            "address": str(item.endpoint),
            "rack": item.rack,
            "is_controller": item.id == described.controller,
            "leaders": leaders[item.id],
            "replicas": replicas[item.id],
        }
        for item in described.brokers
    ]
    if json:
        for row in rows:
            terminal.write_json(row)
        return OK
    terminal.write_table(
        ["ID", "ADDRESS", "RACK", "CONTROLLER", "LEADERS", "REPLICAS"],
        [[_cell(value) for value in row.values()] for row in rows],
    )
    return OK


def _count_partitions(view: ClusterView) -> tuple[Counter[BrokerId], Counter[BrokerId]]:
    """The partitions that each broker leads, and those that it has a replica of."""
    leaders, replicas = Counter[BrokerId](), Counter[BrokerId]()
    for topic in view.topics.values():
        for partition in topic.partitions:
            replicas.update(partition.replicas)
            if partition.leader is not None:
                leaders[partition.leader] += 1
    return leaders, replicas


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
