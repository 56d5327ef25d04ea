"""AdminQuery: Ottla's own queries, by name, with JSON in both directions."""

from typing import TypeAlias

from ottla.protocol.schema import binary, int16, message, string, wire

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


@message(versions="0", flexible="0+")
class AdminQueryRequest:
    """The name of a query; the body is a JSON object."""

    name: str = wire(string, "0+")
    body: bytes = wire(binary, "0+")


@message(versions="0", flexible="0+")
class AdminQueryResponse:
    """The body is a JSON object, and empty after an error."""

    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+", default=None)
    body: bytes = wire(binary, "0+")
