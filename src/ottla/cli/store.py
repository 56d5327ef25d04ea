"""`ottla store`: runs a member of the coordination store, and shows the store's state."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import DEGRADED, FAILED, OK
from ottla.cli.options import Json
from ottla.cli.store_access import AccessOptions, read_access

app = typer.Typer(rich_markup_mode=None, help="Run and show the coordination store.")

_STATUS_CODES: Final = {"healthy": OK, "degraded": DEGRADED, "unreachable": FAILED}

Row = dict[str, Any]


@app.callback()
def store() -> None:
    """Run and show the coordination store."""


@app.command()
def serve(
    name: Annotated[str, typer.Option(metavar="NAME", help="This member's name.")],
    members: Annotated[
        str,
        typer.Option(
            metavar="NAME=HOST[:PORT],...",
            help="All members, the same on every machine; PORT is for other members.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Data directory of this member.")
    ] = Path("store"),
    client_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port for brokers, on every member.")
    ] = 2379,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on, if not HOST; every address if HOST is a name.",
        ),
    ] = "",
    etcd: Annotated[
        str, typer.Option(metavar="PROGRAM", help="The etcd program; by default that in PATH.")
    ] = "etcd",
) -> int:
    """Run a member of etcd with the options that Ottla needs; replaces this process.

    Give the same --members on every machine, and each its own --name. The first start makes the
    cluster; later ones find it in --data. Connections are not encrypted: use it in a network that
    you trust.

    \b
    Examples:
      ottla store serve --name n1 --members n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3 --data /var/lib/etcd
      ottla store serve --name alone --members alone=127.0.0.1
    """
    from ottla.cli.store_member import Member, run_member  # noqa: PLC0415  # `status` needs it not

    return run_member(Member.of(name, members, data, client_port, listen), etcd)


@app.command()
def status(
    store: Annotated[
        str,
        typer.Option(
            metavar="STORE",
            help="etcd://HOST:PORT,.../PREFIX, etcds:// with TLS, or sqlite:FILE.",
            show_default=False,
        ),
    ],
    json: Json = False,
    store_user: Annotated[
        str, typer.Option(metavar="NAME", help="User of etcd (default: OTTLA_STORE_USER).")
    ] = "",
    store_password_file: Annotated[
        str,
        typer.Option(metavar="FILE", help="Its password's file (default: OTTLA_STORE_PASSWORD)."),
    ] = "",
    store_ca: Annotated[
        str, typer.Option(metavar="FILE", help="Authority that etcd's certificate is from.")
    ] = "",
    store_certificate: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate shown to etcd.")
    ] = "",
    store_key: Annotated[
        str, typer.Option(metavar="FILE", help="Its key, if in a file of its own.")
    ] = "",
) -> int:
    """Show whether the coordination store serves, its members, and the brokers in it.

    The exit status is 0 if it is healthy, 3 if it serves and something needs attention (a member is
    away, an alarm), and 1 if it does not serve.

    \b
    Examples:
      ottla store status --store etcd://10.0.0.1,10.0.0.2,10.0.0.3
      ottla store status --store sqlite:./cluster.sqlite --json | jq -r .health
    """
    options = AccessOptions(
        user=store_user or None,
        password_file=_path(store_password_file),
        ca=_path(store_ca),
        certificate=_path(store_certificate),
        key=_path(store_key),
    )
    access = read_access(store, options)
    if access is not None:
        from ottla.cli.store_status import etcd_row  # noqa: PLC0415  # needs h11

        row = asyncio.run(etcd_row(store, access))
    else:
        from ottla.cli.store_status import sqlite_row  # noqa: PLC0415

        row = asyncio.run(sqlite_row(store))
    if json:
        terminal.write_json(row)
    else:
        _write(row)
    return _STATUS_CODES[row["health"]]


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _write(row: Row) -> None:
    revision = "" if row["revision"] is None else f"  revision {row['revision']}"
    brokers = ", ".join(f"{one['id']} ({one['address']})" for one in row["brokers"]) or "none"
    lines = [f"{row['store']}  {row['health']}{revision}"]
    if row["revision"] is not None:
        lines.append(f"cluster {row['cluster'] or 'none yet'}  brokers {brokers}")
    terminal.write_lines(lines)
    if members := row.get("members"):
        terminal.write_table(
            ["MEMBER", "ADDRESS", "ROLE", "VERSION", "SIZE"],
            [
                [
                    one["name"] or "unknown",
                    one["address"] or "none",
                    one["role"],
                    one["version"] or "unknown",
                    terminal.format_size(one["size_bytes"]),
                ]
                for one in members
            ],
        )
    for text in (*row["problems"], *row["warnings"]):
        terminal.print_note(text)
