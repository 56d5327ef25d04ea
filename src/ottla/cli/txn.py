"""`ottla txn`: list, describe and abort transactions."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import FAILED, OK
from ottla.cli.options import Broker, Json
from ottla.cli.run_client import run_with_client
from ottla.client import transactions
from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.transactions import OpenTransaction, TransactionDescription
from ottla.clock import SystemClock
from ottla.errors import UsageRefused
from ottla.model import TopicPartition

app = typer.Typer(rich_markup_mode=None, help="List, describe and abort transactions.")


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str],
        typer.Option("--state", metavar="STATE", help="Only in this state; repeatable."),
    ] = [],  # noqa: B006  typer copies it
    match: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only ids that match this whole pattern.")
    ] = None,
    open_for_ms: Annotated[
        int, typer.Option(min=-1, metavar="MS", help="Only transactions open for longer than this.")
    ] = -1,
    json: Json = False,
    broker: Broker = "",
) -> int:
    """List transactional ids and the states of their transactions.

    \b
    Examples:
      ottla txn list
      ottla txn list --state Ongoing --open-for-ms 60000
      ottla txn list --match 'orders-.*' --json | jq -r .transactional_id
    """
    found = run_with_client(
        broker,
        lambda client: transactions.list_transactions(
            client, states=state, pattern=match, open_for_ms=open_for_ms
        ),
    )
    if json:
        for one in found:
            terminal.write_json(asdict(one))
        return OK
    terminal.write_table(
        ["TRANSACTIONAL-ID", "PRODUCER", "STATE"],
        [[one.transactional_id, str(one.producer_id), one.state] for one in found],
    )
    return OK


@app.command()
def describe(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.")],
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show the producers of transactional ids, and the partitions of their open transactions.

    \b
    Examples:
      ottla txn describe billing
      ottla txn describe billing --json | jq '.partitions'
    """

    async def work(client: Client) -> list[TransactionDescription | Refused]:
        return [await _describe(client, transactional_id) for transactional_id in ids]

    status = OK
    for result in run_with_client(broker, work):
        if isinstance(result, Refused):
            terminal.print_error(str(result))
            status = FAILED
        elif json:
            terminal.write_json(_as_json(result))
        else:
            terminal.write_lines(_lines(result))
    return status


@app.command()
def abort(
    id: Annotated[  # noqa: A002  the argument's name
        str | None, typer.Argument(metavar="[ID]", help="Transactional id.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC:N", help="Instead of an id: partition of a hanging transaction."
        ),
    ] = None,
    producer: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Producer id of the hanging transaction.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    broker: Broker = "",
) -> int:
    """Abort a transaction of a producer. Asks for confirmation on a terminal.

    With a transactional id, its open transaction is aborted in all partitions, and the producer is
    fenced until it is initialized again. With --partition and --producer, a hanging transaction,
    which no coordinator knows, is aborted in one partition.

    \b
    Examples:
      ottla txn abort billing
      ottla txn abort --partition orders:3 --producer 1042 --yes
    """
    by_id = id is not None
    if by_id == (partition is not None) or (partition is None) != (producer is None):
        raise UsageRefused("give a transactional id, or --partition together with --producer")
    what = f"the transaction of {id}" if by_id else f"producer {producer} in {partition}"
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Abort {what}?", abort=True, err=True)
    if id is not None:
        name = id
        run_with_client(broker, lambda client: transactions.fence_producer(client, name))
        terminal.print_note(f"{name}: no transaction is open; its producer is fenced")
        return OK
    tp = _parse_partition(partition or "")
    open_here = run_with_client(broker, lambda client: _abort_hanging(client, tp, producer or 0))
    if open_here is not None:
        terminal.print_error(
            f"producer {producer} has no open transaction in {tp}; {_describe_open(open_here)}"
        )
        return FAILED
    terminal.print_note(f"transaction aborted in {tp}")
    return OK


async def _describe(client: Client, transactional_id: str) -> TransactionDescription | Refused:
    try:
        return await transactions.describe_transaction(client, transactional_id)
    except Refused as refusal:
        return refusal


async def _abort_hanging(
    client: Client, tp: TopicPartition, producer_id: int
) -> list[OpenTransaction] | None:
    """None once it is aborted; else the transactions that are open there."""
    found = await transactions.open_transactions(client, tp)
    for hanging in found:
        if hanging.producer_id == producer_id:
            await transactions.abort_in_partition(client, hanging)
            return None
    return found


def _describe_open(open_here: list[OpenTransaction]) -> str:
    if not open_here:
        return "no producer has"
    return "open are " + ", ".join(
        f"producer {one.producer_id} since offset {one.start_offset}" for one in open_here
    )


def _parse_partition(text: str) -> TopicPartition:
    topic, colon, index = text.rpartition(":")
    if not colon or not topic or not index.isdigit():
        raise UsageRefused(f"--partition {text!r} is not TOPIC:N, such as orders:3")
    return TopicPartition(topic, int(index))


def _as_json(described: TransactionDescription) -> dict[str, Any]:
    partitions = [
        {"topic": tp.topic, "partition": tp.partition} for tp in sorted(described.partitions)
    ]
    return {**asdict(described), "partitions": partitions}


def _lines(described: TransactionDescription) -> list[str]:
    about = (
        f"{described.transactional_id}  {described.state}  producer {described.producer_id}"
        f" epoch {described.producer_epoch}  timeout {described.timeout_ms} ms"
    )
    if described.started_ms is None:
        return [about]
    age_s = (SystemClock().now_ms() - described.started_ms) / 1000
    partitions = [f"  {tp}" for tp in sorted(described.partitions)]
    return [f"{about}  open for {age_s:.1f} s", *partitions]
