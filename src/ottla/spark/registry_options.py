"""Options of a schema registry: where it is, and the subject of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.spark.option_reader import REGISTRY_PREFIX, OptionReader, OptionRefused

_URL: Final = "url"
# Settings of the registry's client that are numbers.
_NUMBERS: Final = frozenset(
    {
        "timeout",
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.wait.ms",
        "retries.max.wait.ms",
    }
)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Settings of the registry's client, by their names there; equal ones share a client."""

    settings: tuple[tuple[str, str | float], ...]

    @property
    def url(self) -> str:
        return str(dict(self.settings)[_URL])


def parse_registry(raw: Mapping[str, str]) -> RegistryOptions | None:
    """Parse the options schema.registry.*; None without `schema.registry.url`."""
    given = {
        name.lower().removeprefix(REGISTRY_PREFIX): value.strip()
        for name, value in raw.items()
        if name.lower().startswith(REGISTRY_PREFIX)
    }
    if not given:
        return None
    if not given.get(_URL):
        raise OptionRefused("schema.registry.url is missing, for example http://127.0.0.1:8081")
    return RegistryOptions(
        tuple(sorted((name, _setting(name, value)) for name, value in given.items()))
    )


def parse_subject(options: OptionReader, topics: tuple[str, ...]) -> str:
    """The subject of values: valueSubject, or `<topic>-value` if there is one topic."""
    subject = options.text("valueSubject")
    if subject:
        return subject
    if len(topics) != 1:
        raise OptionRefused(
            "valueSubject is missing: it is <topic>-value by default, and there is not one topic"
        )
    return f"{topics[0]}-value"


def _setting(name: str, value: str) -> str | float:
    if name not in _NUMBERS:
        return value
    try:
        return int(value) if value.isdigit() else float(value)
    except ValueError:
        raise OptionRefused(f"{REGISTRY_PREFIX}{name}={value} is not a number") from None
