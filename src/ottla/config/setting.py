"""A setting: a dataclass field with its name, kind, parser and documentation."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from ottla.config.without_effect import WITHOUT_EFFECT
from ottla.errors import InvalidConfig, did_you_mean

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
MIB: Final = 1 << 20
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
AUTO: Final = "auto"  # a number that follows from the cluster
NumberOrAuto: TypeAlias = int | Literal["auto"]


class Kind(StrEnum):
    """The type of a value, by the names of Kafka's ConfigType."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its name, kind, parser and documentation."""

    name: str
    kind: Kind
    doc: str
    allowed: str
    parse: Callable[[str], Any]
    broker_name: str | None = None  # the broker setting that is the default of this topic setting
    is_shared: bool = False  # the same for all brokers: not to be changed for one alone

    @property
    def has_effect(self) -> bool:
        """False for a setting that Kafka has and that is accepted, shown and nothing else."""
        return self.name not in WITHOUT_EFFECT

    @property
    def full_doc(self) -> str:
        """The documentation, and why the setting has no effect if it has none."""
        reason = WITHOUT_EFFECT.get(self.name)
        return self.doc if reason is None else f"{self.doc} Without effect: {reason}"


def _integer(kind: Kind, low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


def _integer_or(also: int, low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("not a whole number") from None
        if value != also and not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}, or {also}")
        return value

    return parse


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise ValueError("must be true or false")
    return word == "true"


def _one_of(choices: tuple[str, ...], make: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.strip() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return make(text.strip())

    return parse


def _decimal(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("not a number") from None
        if not low <= value <= high:  # nan is neither
            raise ValueError(f"must be between {low:g} and {high:g}")
        return value

    return parse


def _some_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        words = {word.strip() for word in text.split(",")} - {""}
        if not words <= set(choices):
            raise ValueError(f"must be any of {', '.join(choices)}")
        return tuple(choice for choice in choices if choice in words)

    return parse


def number(
    name: str,
    default: int,
    doc: str,
    *,
    low: int = 0,
    high: int = INT64_MAX,
    broker: str = "",
    shared: bool = False,
) -> Any:
    """A field with an integer."""
    kind = Kind.INT if high <= INT32_MAX else Kind.LONG
    allowed = f"{low} or more" if high in {INT32_MAX, INT64_MAX} else f"{low} to {high}"
    row = Setting(name, kind, doc, allowed, _integer(kind, low, high), broker or None, shared)
    return field(default=default, metadata={"setting": row})


def number_or_auto(name: str, doc: str, *, low: int, high: int, shared: bool = False) -> Any:
    """A field with an integer, or by default with `auto`: then it follows from the cluster."""
    parse_number = _integer(Kind.INT, low, high)

    def parse(text: str) -> NumberOrAuto:
        return AUTO if text.strip() == AUTO else parse_number(text)

    row = Setting(name, Kind.STRING, doc, f"{AUTO}, {low} to {high}", parse, None, shared)
    return field(default=AUTO, metadata={"setting": row})


def level(
    name: str, default: int, doc: str, *, low: int, high: int, also: int, broker: str = ""
) -> Any:
    """A field with an integer of a range, or one other; a broker has it under the same name,
    unless `broker` is another."""
    allowed = f"{low} to {high}, or {also}"
    row = Setting(name, Kind.INT, doc, allowed, _integer_or(also, low, high), broker or name)
    return field(default=default, metadata={"setting": row})


def number_or_all(name: str, everything: int, doc: str) -> Any:
    """A field with a count, or by default with the number that means all."""
    allowed = f"1 or more, or {everything}"
    row = Setting(name, Kind.INT, doc, allowed, _integer_or(everything, 1, INT32_MAX))
    return field(default=everything, metadata={"setting": row})


def never(name: str, doc: str, refusal: str) -> Any:
    """A field with a boolean that can only be false; `refusal` says why."""

    def parse(text: str) -> bool:
        if _boolean(text):
            raise ValueError(refusal)
        return False

    return field(
        default=False, metadata={"setting": Setting(name, Kind.BOOLEAN, doc, "false", parse)}
    )


def matching(name: str, pattern: str, allowed: str, doc: str) -> Any:
    """A field with a list, empty by default, whose text matches a regular expression."""
    form = re.compile(pattern)

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(word for word in map(str.strip, text.split(",")) if word)
        if not form.fullmatch(",".join(words)):
            raise ValueError("has another form")
        return words

    return field(default=(), metadata={"setting": Setting(name, Kind.LIST, doc, allowed, parse)})


def flag(name: str, default: bool, doc: str, *, broker: str = "", shared: bool = False) -> Any:
    """A field with a boolean."""
    row = Setting(name, Kind.BOOLEAN, doc, "true, false", _boolean, broker or None, shared)
    return field(default=default, metadata={"setting": row})


def choice(
    name: str,
    default: str,
    choices: tuple[str, ...],
    doc: str,
    *,
    make: Callable[[str], Any] = str,
    kind: Kind = Kind.STRING,
    broker: str = "",
    shared: bool = False,
) -> Any:
    """A field with one of several values."""
    parse = _one_of(choices, make)
    row = Setting(name, kind, doc, ", ".join(choices), parse, broker or None, shared)
    return field(default=make(default), metadata={"setting": row})


def decimal(
    name: str, default: float, doc: str, *, low: float, high: float, broker: str = ""
) -> Any:
    """A field with a decimal number."""
    allowed = f"{low:g} to {high:g}"
    row = Setting(name, Kind.DOUBLE, doc, allowed, _decimal(low, high), broker or None)
    return field(default=default, metadata={"setting": row})


def several(
    name: str, default: tuple[str, ...], choices: tuple[str, ...], doc: str, *, broker: str = ""
) -> Any:
    """A field with any of several values, or none, separated by commas."""
    allowed = f"{', '.join(choices)}, several or none"
    row = Setting(name, Kind.LIST, doc, allowed, _some_of(choices), broker or None)
    return field(default=default, metadata={"setting": row})


def ordered(name: str, default: tuple[str, ...], choices: tuple[str, ...], doc: str) -> Any:
    """Like `several`, but the order of the values matters."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        if not set(words) <= set(choices):
            raise ValueError(f"must be one or more of {', '.join(choices)}")
        return words

    row = Setting(name, Kind.LIST, doc, f"{', '.join(choices)}, or several", parse)
    return field(default=default, metadata={"setting": row})


def text(
    name: str, default: str, pattern: str, allowed: str, doc: str, *, broker: str | None = ""
) -> Any:
    """A field whose text matches a regular expression; a broker has it under the same name,
    unless `broker` is None."""
    form = re.compile(pattern, re.IGNORECASE)

    def parse(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError("has another form")
        return text

    row = Setting(name, Kind.STRING, doc, allowed, parse, name if broker == "" else broker)
    return field(default=default, metadata={"setting": row})


def settings_of(config: type) -> Iterator[tuple[str, Setting]]:
    """Field name and setting of every field of a configuration class that has one."""
    for item in fields(config):
        if "setting" in item.metadata:
            yield item.name, item.metadata["setting"]


def format_value(value: object) -> str:
    """A setting's value as text, which its parser accepts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def parse_value(row: Setting, text: str) -> Any:
    """Parse one value, or raise `InvalidConfig` with the allowed values."""
    try:
        return row.parse(text)
    except ValueError as problem:
        raise InvalidConfig(
            f"invalid value {row.name} = {text!r}: allowed is {row.allowed} ({problem})"
        ) from None


def parse_all(
    raw: Mapping[str, str], rows: Mapping[str, tuple[str, Setting]], scope: str
) -> dict[str, Any]:
    """Field values from names and texts; `rows` maps names to (field name, setting)."""
    if unknown := sorted(raw.keys() - rows.keys()):
        hint = did_you_mean(unknown[0], rows) if len(unknown) == 1 else ""
        raise InvalidConfig(
            f"unknown {scope} setting{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}"
            f"{hint or '; `ottla config list` shows the known ones'}"
        )
    return {rows[name][0]: parse_value(rows[name][1], text) for name, text in raw.items()}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A TOML document as dotted names and texts; names may be nested tables or quoted."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        elif isinstance(value, list):
            flat[prefix + key] = ",".join(map(str, value))
        else:
            flat[prefix + key] = format_value(value)
    return flat
