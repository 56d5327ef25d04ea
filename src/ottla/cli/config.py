"""`ottla config`: lists all settings."""

from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated

import typer

from ottla.cli import terminal
from ottla.cli.options import Json
from ottla.config import BrokerConfig, GroupConfig, Setting, TopicConfig, format_value, settings_of

ConfigClass = type[TopicConfig | BrokerConfig | GroupConfig]

app = typer.Typer(rich_markup_mode=None, help="List the settings of topics, brokers and groups.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A listed setting; the field names are those of the JSON output."""

    scope: str
    name: str
    kind: str
    default: str
    allowed: str
    effect: str
    documentation: str


@app.callback()
def config() -> None:
    """List the settings of topics, brokers and groups."""


@app.command("list")
def list_settings(
    topic: Annotated[bool, typer.Option("--topic", help="Only topic settings.")] = False,
    broker: Annotated[bool, typer.Option("--broker", help="Only broker settings.")] = False,
    group: Annotated[bool, typer.Option("--group", help="Only group settings.")] = False,
    json: Json = False,
) -> None:
    """List every setting with its kind, default, allowed values and documentation.

    Topic settings can be set per topic; broker settings under another name are their defaults.
    EFFECT is none for settings of Kafka that are accepted and change nothing here.

    \b
    Examples:
      ottla config list
      ottla config list --topic
      ottla config list --json | jq -r .name
    """
    options = {"topic": topic, "broker": broker, "group": group}
    scopes = {scope for scope, is_given in options.items() if is_given} or options.keys()
    rows = [row for row in setting_rows() if row.scope in scopes]
    if json:
        for row in rows:
            terminal.write_json(asdict(row))
        return
    terminal.write_table(
        ["SCOPE", "NAME", "KIND", "DEFAULT", "ALLOWED", "EFFECT", "DOCUMENTATION"],
        [list(asdict(row).values()) for row in rows],
    )


def setting_rows() -> Iterator[SettingRow]:
    """Topic settings, broker settings beginning with the defaults of those, and group settings."""
    yield from _rows("topic", TopicConfig)
    defaults = _defaults(TopicConfig)
    for field, row in settings_of(TopicConfig):
        if row.broker_name is not None:
            yield SettingRow(
                scope="broker",
                name=row.broker_name,
                kind=row.kind,
                default=defaults[field],
                allowed=row.allowed,
                effect=_effect(row),
                documentation=f"Default of the topic setting {row.name}.",
            )
    yield from _rows("broker", BrokerConfig)
    yield from _rows("group", GroupConfig)


def _rows(scope: str, config_class: ConfigClass) -> Iterator[SettingRow]:
    defaults = _defaults(config_class)
    for field, row in settings_of(config_class):
        yield SettingRow(
            scope=scope,
            name=row.name,
            kind=row.kind,
            default=defaults[field],
            allowed=row.allowed,
            effect=_effect(row),
            documentation=row.full_doc,
        )


def _effect(row: Setting) -> str:
    return "yes" if row.has_effect else "none"


def _defaults(config_class: ConfigClass) -> dict[str, str]:
    return {
        field.name: format_value(field.default)
        for field in fields(config_class)
        if field.default is not MISSING
    }
