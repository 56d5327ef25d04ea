"""What the dispatcher knows of an API: its key, the versions served, and who answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.protocol.api import ApiKey


class RequestContext(NamedTuple):
    """What is known of a request besides its body."""

    version: int
    client_id: str | None
    peer: str


class Route(NamedTuple):
    """`answer` takes a decoded request and a RequestContext; it returns the response message,
    or a coroutine when it has to wait for something."""

    key: ApiKey
    versions: range
    answer: Callable[[Any, RequestContext], Any]
