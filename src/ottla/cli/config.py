"""`ottla config`: lists all settings."""

from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated

import typer

from ottla.cli import terminal
from ottla.cli.options import Json
from ottla.config import BrokerConfig, Setting, TopicConfig, format_value, settings_of

app = typer.Typer(rich_markup_mode=None, help="List the settings of topics and brokers.")


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
    """List the settings of topics and brokers."""


@app.command("list")
def list_settings(
    topic: Annotated[bool, typer.Option("--topic", help="Only topic settings.")] = False,
    broker: Annotated[bool, typer.Option("--broker", help="Only broker settings.")] = False,
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
    both = topic == broker
    rows = [row for row in setting_rows() if both or (row.scope == "topic") == topic]
    if json:
        for row in rows:
            terminal.write_json(asdict(row))
        return
    terminal.write_table(
        ["SCOPE", "NAME", "KIND", "DEFAULT", "ALLOWED", "EFFECT", "DOCUMENTATION"],
        [list(asdict(row).values()) for row in rows],
    )


def setting_rows() -> Iterator[SettingRow]:
    """Topic settings, then broker settings, beginning with the defaults of topic settings."""
    topic_defaults = _defaults(TopicConfig)
    for field, row in settings_of(TopicConfig):
        default = topic_defaults[field]
        yield SettingRow(
            scope="topic",
            name=row.name,
            kind=row.kind,
            default=default,
            allowed=row.allowed,
            effect=_effect(row),
            documentation=row.full_doc,
        )
    for field, row in settings_of(TopicConfig):
        if row.broker_name is not None:
            yield SettingRow(
                scope="broker",
                name=row.broker_name,
                kind=row.kind,
                default=topic_defaults[field],
                allowed=row.allowed,
                effect=_effect(row),
                documentation=f"Default of the topic setting {row.name}.",
            )
    broker_defaults = _defaults(BrokerConfig)
    for field, row in settings_of(BrokerConfig):
        yield SettingRow(
            scope="broker",
            name=row.name,
            kind=row.kind,
            default=broker_defaults[field],
            allowed=row.allowed,
            effect=_effect(row),
            documentation=row.full_doc,
        )


def _effect(row: Setting) -> str:
    return "yes" if row.has_effect else "none"


def _defaults(config_class: type[TopicConfig | BrokerConfig]) -> dict[str, str]:
    return {
        field.name: format_value(field.default)
        for field in fields(config_class)
        if field.default is not MISSING
    }
