"""Bindings of exchanges, direct, topic and fanout: the queues that a message goes to."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple


class Binding(NamedTuple):
    """A queue that gets messages of an exchange."""

    exchange: str
    kind: str  # direct, topic or fanout
    routing_key: str
    queue: str


def queues_for(bindings: Iterable[Binding], exchange: str, routing_key: str) -> set[str]:
    """The queues that a message goes to; of the exchange without a name, the one of that name."""
    if not exchange:
        return {routing_key}
    return {
        binding.queue
        for binding in bindings
        if binding.exchange == exchange and _matches(binding, routing_key)
    }


def _matches(binding: Binding, routing_key: str) -> bool:
    match binding.kind:
        case "fanout":
            return True
        case "topic":
            return _pattern(binding.routing_key).fullmatch(routing_key) is not None
        case _:
            return binding.routing_key == routing_key


@lru_cache(1000)
def _pattern(routing_key: str) -> re.Pattern[str]:
    """A topic's pattern: `*` is a word, `#` any number of words."""
    words = {"*": r"[^.]+", "#": r".*"}
    return re.compile(
        r"\.".join(words.get(word, re.escape(word)) for word in routing_key.split("."))
    )
