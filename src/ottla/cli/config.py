"""`ottla config`: lists all settings; shows, sets and unsets those of a topic, broker or group."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Final

import typer

from ottla.cli import terminal
from ottla.cli.exit_codes import OK
from ottla.cli.options import Broker, Json, parse_assignments
from ottla.cli.run_client import run_with_client
from ottla.cli.setting_choice import check_removed, choose_settings
from ottla.cli.setting_table import setting_blocks, setting_rows
from ottla.client import configs
from ottla.client.client import Client
from ottla.client.configs import ALL_BROKERS, Resource, ResourceKind
from ottla.errors import UsageRefused

app = typer.Typer(
    rich_markup_mode=None, help="List settings; show and change those of topics, brokers, groups."
)

_ALL: Final = "all"


class ListedScope(StrEnum):
    """The scopes of `config list`."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


class Scope(StrEnum):
    """The resources with settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


ScopeArgument = Annotated[Scope, typer.Argument(metavar="SCOPE", help="topic, broker or group.")]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The topic, the broker's id (or all), or the group."),
]


@app.callback()
def config() -> None:
    """List settings; show and change those of topics, brokers and groups."""


@app.command("list")
def list_settings(
    scope: Annotated[
        ListedScope | None, typer.Argument(metavar="[SCOPE]", help="Only topic, broker or group.")
    ] = None,
    json: Json = False,
) -> int:
    """List every setting there is, with default, allowed values and documentation.

    Topic settings can be set per topic; broker settings under another name are their defaults.
    Settings of Kafka that are accepted and change nothing here say that, and why.

    \b
    Examples:
      ottla config list
      ottla config list topic
      ottla config list --json | jq -r .name
    """
    rows = [row for row in setting_rows() if scope is None or row.scope == scope.value]
    if json:
        for row in rows:
            terminal.write_json(asdict(row))
    else:
        terminal.write_lines(setting_blocks(rows, terminal.width()))
    return OK


@app.command()
def get(
    scope: ScopeArgument,
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="[SETTING]...", help="Settings; default: all.")
    ] = [],  # noqa: B006  typer copies it
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Show the values in force, and where each comes from.

    Sources are topic, group, broker (set for one while it runs), all brokers, start (the broker's
    --config and --set) and default. `broker all` has what was set for all brokers.

    \b
    Examples:
      ottla config get topic orders
      ottla config get topic orders retention.ms --json
      ottla config get broker 0
      ottla config get broker all
      ottla config get group billing
    """
    resource = _resource(scope, name)
    shown = run_with_client(broker, lambda client: configs.settings_of(client, [resource]))
    chosen = choose_settings(shown[resource], settings, resource)
    if json:
        for item in chosen:
            terminal.write_json(
                {
                    "scope": scope.value,
                    "resource": name,
                    "name": item.name,
                    "value": item.value,
                    "source": item.source.text,
                    "read_only": item.is_read_only,
                }
            )
        return OK
    terminal.write_table(
        ["NAME", "VALUE", "SOURCE"],
        [
            [item.name, "(secret)" if item.value is None else item.value, item.source.text]
            for item in chosen
        ],
    )
    return OK


@app.command("set")
def set_settings(
    scope: ScopeArgument,
    name: Name,
    assignments: Annotated[
        list[str], typer.Argument(metavar="SETTING=VALUE...", help="Settings with new values.")
    ],
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Set settings, all or none; running brokers follow at once.

    \b
    Examples:
      ottla config set topic orders retention.ms=86400000
      ottla config set broker all log.retention.ms=604800000
      ottla config set broker 0 max.connections=5000
      ottla config set group billing consumer.session.timeout.ms=60000
    """
    assign = parse_assignments("", assignments)
    return _alter(scope, name, assign, [], json=json, broker=broker)


@app.command()
def unset(
    scope: ScopeArgument,
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="SETTING...", help="Settings to return to defaults.")
    ],
    json: Json = False,
    broker: Broker = "",
) -> int:
    """Return settings to what they are without having been set, all or none.

    \b
    Examples:
      ottla config unset topic orders retention.ms
      ottla config unset broker all log.retention.ms
    """
    return _alter(scope, name, {}, list(dict.fromkeys(settings)), json=json, broker=broker)


def _alter(
    scope: Scope,
    name: str,
    assign: dict[str, str],
    remove: list[str],
    *,
    json: bool,
    broker: str,
) -> int:
    resource = _resource(scope, name)

    async def work(client: Client) -> None:
        await check_removed(client, resource, remove)
        await configs.alter_settings(client, resource, assign=assign, remove=remove)

    run_with_client(broker, work)
    for setting, value in [*assign.items(), *((setting, None) for setting in remove)]:
        if json:
            row = {"scope": scope.value, "resource": name, "name": setting, "value": value}
            terminal.write_json(row)
        else:
            done = f"{setting} unset" if value is None else f"{setting}={value}"
            terminal.print_note(f"{resource}: {done}")
    return OK


def _resource(scope: Scope, name: str) -> Resource:
    if scope is not Scope.BROKER:
        return Resource(ResourceKind[scope.name], name)
    if name == _ALL:
        return Resource(ResourceKind.BROKER, ALL_BROKERS)
    if not (name.isascii() and name.isdigit()):
        raise UsageRefused(f"{name!r} is no broker's id (see `ottla broker list`) and not all")
    return Resource(ResourceKind.BROKER, str(int(name)))
