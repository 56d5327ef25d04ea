"""Every setting as a row, and as text for people."""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from textwrap import wrap

from ottla.config import BrokerConfig, GroupConfig, Setting, TopicConfig, format_value, settings_of

ConfigClass = type[TopicConfig | BrokerConfig | GroupConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A listed setting; the field names are those of the JSON output."""

    scope: str
    name: str
    kind: str
    default: str
    allowed: str
    effect: str  # "none" for settings that are accepted and change nothing
    documentation: str


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


def _defaults(config_class: ConfigClass) -> dict[str, str]:
    return {
        field.name: format_value(field.default)
        for field in fields(config_class)
        if field.default is not MISSING
    }
