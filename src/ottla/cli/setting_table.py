"""Every setting as a row, and as text for people."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from textwrap import wrap

from ottla.config import BrokerConfig, TopicConfig, format_value, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A listed setting; the field names are those of the JSON output."""

    scope: str
    name: str
    kind: str
    default: str
    allowed: str
    documentation: str


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
            documentation=row.doc,
        )
    for field, row in settings_of(TopicConfig):
        if row.broker_name is not None:
            yield SettingRow(
                scope="broker",
                name=row.broker_name,
                kind=row.kind,
                default=topic_defaults[field],
                allowed=row.allowed,
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
            documentation=row.doc,
        )


def setting_blocks(rows: Iterable[SettingRow], width: int) -> list[str]:
    """Lines of at most `width` columns: a heading for each scope, then name, values and text."""
    lines = list[str]()
    scope = ""
    for row in rows:
        if row.scope != scope:
            scope = row.scope
            lines += [*([""] if lines else []), f"{scope} settings", ""]
        lines.append(f"  {row.name} = {row.default}")
        text = f"{row.kind}; allowed: {row.allowed}. {row.documentation}"
        lines += wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def _defaults(config_class: type[TopicConfig | BrokerConfig]) -> dict[str, str]:
    return {
        field.name: format_value(field.default)
        for field in fields(config_class)
        if field.default is not MISSING
    }
