"""`ottla cluster`: shows the cluster."""

import typer

from ottla.cli import terminal
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

app = typer.Typer(rich_markup_mode=None, help="Show the cluster.")


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
