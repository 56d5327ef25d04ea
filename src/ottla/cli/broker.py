"""`ottla broker`: list the brokers of the cluster, drain and remove them."""

import asyncio
import sys
from typing import Annotated, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json
from ottla.cli.run_client import run_with_client
from ottla.client.client import Client
from ottla.client.cluster_description import ClusterDescription, describe_cluster
from ottla.client.cluster_view import ClusterView, count_leaders, count_replicas
from ottla.client.placement import remove_broker, set_draining
from ottla.clock import SystemClock
from ottla.model import BrokerId

app = typer.Typer(rich_markup_mode=None, help="List, drain and remove brokers of the cluster.")

BrokerNumber = Annotated[int, typer.Argument(min=0, metavar="ID", help="The broker's id.")]
_LOOK_S: Final = 0.5  # between two looks at a broker that is being drained


@app.callback()
def broker() -> None:
    """List, drain and remove brokers of the cluster."""


@app.command("list")
def list_brokers(json: Json = False, broker: Broker = "") -> int:
    """List the brokers: addresses, states, racks, machines, and what they lead and keep.

    A broker that is not alive is listed until it is removed.

    \b
    Examples:
      ottla broker list
      ottla broker list --json | jq -r .address
      ottla broker list --json | jq 'select(.state == "dead").id'
    """

    async def work(client: Client) -> tuple[ClusterDescription, ClusterView]:
        return await describe_cluster(client, has_dead=True), await client.describe(None)

    described, view = run_with_client(broker, work)
    leaders, replicas = count_leaders(view), count_replicas(view)
    rows = [
        {
            "id": item.id,
            "address": None if item.endpoint is None else str(item.endpoint),
            "state": "alive" if item.is_alive else "dead",
            "wanted": "draining" if item.is_draining else "active",
            "rack": item.rack,
            "machine": item.machine,
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
    names = ("id", "address", "state", "wanted", "rack", "machine", "controller", "leaders")
    terminal.write_table(
        [name.upper() for name in (*names, "replicas")],
        [[_cell(name, value) for name, value in row.items()] for row in rows],
    )
    return OK


@app.command()
def drain(
    number: BrokerNumber,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait until the broker has no replicas.")
    ] = False,
    broker: Broker = "",
) -> int:
    """Move all replicas of a broker to others, a few partitions at a time.

    It gets no new ones until `ottla broker undrain`. A dead broker can be drained too.

    \b
    Examples:
      ottla broker drain 3
      ottla broker drain 3 --follow
    """
    wanted = BrokerId(number)

    async def work(client: Client) -> None:
        await set_draining(client, wanted, is_draining=True)
        count = await _replica_count(client, wanted)
        partitions = terminal.counted(count, "partition")
        terminal.print_note(f"broker {number} is being drained: it has {partitions}")
        if follow:
            await _wait_drained(client, wanted, count)

    run_with_client(broker, work)
    return OK


@app.command()
def undrain(number: BrokerNumber, broker: Broker = "") -> int:
    """Let a broker that was drained have replicas again. Moves that have begun go on.

    \b
    Examples:
      ottla broker undrain 3
    """
    run_with_client(
        broker, lambda client: set_draining(client, BrokerId(number), is_draining=False)
    )
    terminal.print_note(f"broker {number} is no longer drained")
    return OK


@app.command()
def remove(
    number: BrokerNumber,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    broker: Broker = "",
) -> int:
    """Forget a broker that will not come back. Refused while it runs or has replicas.

    \b
    Examples:
      ottla broker drain 3 --follow
      ottla broker remove 3
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove broker {number} from the cluster?", abort=True, err=True)
    run_with_client(broker, lambda client: remove_broker(client, BrokerId(number)))
    terminal.print_note(f"broker {number} removed")
    return OK


async def _replica_count(client: Client, broker: BrokerId) -> int:
    return count_replicas(await client.describe(None))[broker]


async def _wait_drained(client: Client, broker: BrokerId, count: int) -> None:
    progress = terminal.Progress(SystemClock())
    while count:
        progress.show(f"broker {broker}: {terminal.counted(count, 'partition')} left")
        await asyncio.sleep(_LOOK_S)
        count = await client.retry(lambda: _replica_count(client, broker))
    progress.clear()
    terminal.print_note(f"broker {broker} has no partitions any more")


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "machine" and value is not None:
        return str(value)[:12]
    return "none" if value is None else str(value)
