"""Options of `format("ottla")` by name, whatever its case, with checked values."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from ottla.client.positions import AtTime, parse_log_position
from ottla.errors import UsageRefused
from ottla.model import TimestampMs

T = TypeVar("T")


REGISTRY_PREFIX: Final = "schema.registry."


class OptionRefused(ValueError):
    """An invalid option; the text names it and says what to write instead."""


# Options that Spark's connector refuses, with the reason.
_REFUSED: Final = {
    "kafka.auto.offset.reset": "say where to start with startingOffsets",
    "kafka.key.deserializer": "keys are always bytes: cast them with Spark",
    "kafka.value.deserializer": "values are bytes, or what valueFormat says",
    "kafka.enable.auto.commit": "offsets are committed after every batch: see commitGroup",
    "kafka.interceptor.classes": "interceptors cannot run here",
}


class OptionReader:
    """Options by name, without regard to case."""

    def __init__(self, raw: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in raw.items()}
        self._known = known

    def refuse_unknown(self) -> None:
        for name, reason in _REFUSED.items():
            if name in self._values:
                raise OptionRefused(f"{name} is not supported: {reason}")
        known = {name.lower() for name in self._known}
        unknown = [
            name
            for name in self._values
            if name not in known and not name.startswith(("kafka.", REGISTRY_PREFIX))
        ]
        if unknown:
            raise OptionRefused(
                f"unknown option {', '.join(sorted(unknown))}; there are {', '.join(self._known)},"
                f" {REGISTRY_PREFIX}* and kafka.*"
            )

    def given(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name.lower() in self._values]

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def positive(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise OptionRefused(f"{name}={text} is not a number of 1 or more")
        return int(text)

    def truth(self, name: str, default: bool) -> bool:
        return self.choose(name, ("true", "false"), str(default).lower()) == "true"

    def choose(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise OptionRefused(f"{name}={text} is none of {', '.join(choices)}")
        return text

    def size(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else parsed(name, parse_size, text)

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        return default_ms if text is None else parsed(name, parse_duration_ms, text)

    def json_object(self, name: str) -> dict[str, object]:
        text = self.text(name) or ""
        try:
            found = json.loads(text)
        except ValueError:
            raise OptionRefused(f"{name} is not JSON: {text}") from None
        if not isinstance(found, dict):
            raise OptionRefused(f'{name} is not a JSON object such as {{"topic":{{"0":42}}}}')
        return found


_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def parse_size(text: str) -> int:
    """Bytes, with k, m, g or t for powers of 1024."""
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError("it is not a size such as 64m")
    return int(found[1]) << _SHIFTS[found[2].lower()]


def parse_duration_ms(text: str) -> int:
    """A duration as Spark writes it: 15m, 30s, 500ms; a number alone is in milliseconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("it is not a duration such as 15m, 30s or 500ms")
    return int(found[1]) * _MS[(found[2] or "ms").lower()]


def parse_time_ms(text: str, now_ms: TimestampMs) -> TimestampMs:
    """Milliseconds since 1970, a date with time such as 2026-11-15T00:00Z, or -2h."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return TimestampMs(int(stripped))
    try:
        position = parse_log_position(stripped, now_ms)
    except UsageRefused:
        position = None
    if not isinstance(position, AtTime):
        raise ValueError(
            "it is not a time such as 2026-11-15T00:00Z, -2h or milliseconds since 1970"
        )
    return position.timestamp_ms


def parsed(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as problem:
        raise OptionRefused(f"{name}={text}: {problem}") from None
