"""Options shared by several commands, and their parsers."""

import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from ottla.errors import UsageRefused
from ottla.model import Endpoint

BROKER_VARIABLE: Final = "OTTLA_BROKER"
BROKER_DEFAULT: Final = "127.0.0.1:9092"
BROKER_HELP: Final = "A broker of the cluster, or several separated by commas."


def resolve_broker(context: typer.Context, value: str) -> str:
    """--broker after the command, else the one before it, else OTTLA_BROKER or the default."""
    return value or context.find_root().params.get("broker") or BROKER_DEFAULT


Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        help=BROKER_HELP,
        show_default=BROKER_DEFAULT,
        callback=resolve_broker,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_brokers(text: str) -> list[Endpoint]:
    """Parse one HOST:PORT, or several separated by commas."""
    try:
        return [Endpoint.parse(part.strip()) for part in text.split(",")]
    except ValueError as problem:
        origin = BROKER_VARIABLE if is_from_environment(text) else "--broker"
        raise UsageRefused(f"{origin}: {problem}") from None


def is_from_environment(broker: str) -> bool:
    """True if OTTLA_BROKER says what the command uses."""
    return broker == os.environ.get(BROKER_VARIABLE)


def parse_assignments(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse repeated NAME=VALUE; the last one of a name wins. `option` may be empty."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageRefused(
                f"{option} {text!r} is not NAME=VALUE, such as retention.ms=3600000".lstrip()
            )
        pairs[name.strip()] = value.strip()
    return pairs


def parse_topic_choices(option: str, texts: Sequence[str]) -> dict[str, frozenset[int] | None]:
    """Parse repeated TOPIC or TOPIC:0,1,2; None means all partitions."""
    chosen: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, indexes = text.partition(":")
        words = indexes.split(",")
        if not topic or (colon and not all(word.isascii() and word.isdigit() for word in words)):
            raise UsageRefused(f"{option} {text!r} is not TOPIC or TOPIC:0,1,2")
        added = frozenset(map(int, words)) if colon else None
        before = chosen.get(topic, frozenset())
        chosen[topic] = None if added is None or before is None else before | added
    return chosen
