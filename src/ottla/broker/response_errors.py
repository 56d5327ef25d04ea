"""Error codes in response messages, for the metric of errors by API and code."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from ottla.broker.slices import parts
from ottla.protocol.codec import Steps
from ottla.protocol.schema import Array, wire_fields

_CODE: Final = "error_code"
_ELEMENTS_PER_UNIT: Final = 50  # of work, see `slices`

Path = tuple[tuple[str, bool], ...]  # of fields, each with whether it is an array


def error_codes(message: object, version: int) -> list[int]:
    """Every error code in a message of this version that is not 0."""
    message_class: type = type(message)
    found: list[int] = []
    for path in _paths(message_class, version):
        values: list[Any] = [message]
        for name, is_array in path:
            outer, values = values, []
            for value in outer:
                inner = getattr(value, name)
                if inner is not None:
                    values += inner if is_array else (inner,)
        found += [value.error_code for value in values if value.error_code]
    return found


def error_codes_in_slices(message: object, version: int) -> Steps[list[int]]:
    """The same for a message that may be large."""
    message_class: type = type(message)
    found: list[int] = []
    for path in _paths(message_class, version):
        values: list[Any] = [message]
        for name, is_array in path:
            outer, values = values, []
            for part in parts(outer, _ELEMENTS_PER_UNIT):
                for inner in (getattr(value, name) for value in part):
                    if inner is not None:
                        values += inner if is_array else (inner,)
                yield 1
        for part in parts(values, _ELEMENTS_PER_UNIT):
            found += [value.error_code for value in part if value.error_code]
            yield 1
    return found


@cache
def _paths(struct_class: type, version: int) -> tuple[Path, ...]:
    """The ways to the structs that have an error code, from a struct that is one or has some."""
    found: list[Path] = []
    for name, kind in _kinds(struct_class, version):
        is_array = isinstance(kind, Array)
        inner = kind.element if isinstance(kind, Array) else kind
        if name == _CODE:
            found.append(())
        elif isinstance(inner, type):
            found += [((name, is_array), *path) for path in _paths(inner, version)]
    return tuple(found)


def _kinds(struct_class: type, version: int) -> Iterator[tuple[str, object]]:
    for item in wire_fields(struct_class):
        if version in item.wire.versions:
            yield item.name, item.wire.kind
