"""Error codes in response messages, for the metric of errors by API and code."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.protocol.codec import Steps
from ottla.protocol.schema import Array, wire_fields

_CODE: Final = "error_code"
_ELEMENTS_PER_UNIT: Final = 50  # of work, see `slices`


class _Part(NamedTuple):
    """Where a struct has error codes: its own, and those of structs and arrays of structs in it."""

    has_code: bool
    structs: tuple[tuple[str, "_Part"], ...]
    arrays: tuple[tuple[str, "_Part"], ...]
    is_leaf: bool  # it has no other than its own


def error_codes(message: object, version: int) -> list[int]:
    """Every error code in a message of this version that is not 0."""
    message_class: type = type(message)
    part = _part_of(message_class, version)
    found: list[int] = []
    if part is not None:
        _collect(part, message, found)
    return found


def error_codes_in_slices(message: object, version: int) -> Steps[list[int]]:
    """The same for a message that may be large."""
    message_class: type = type(message)
    part = _part_of(message_class, version)
    found: list[int] = []
    if part is None:
        return found
    _collect(part._replace(arrays=()), message, found)
    for name, inner in part.arrays:
        for index, element in enumerate(getattr(message, name) or ()):
            size = _collect(inner, element, found)
            if size > _ELEMENTS_PER_UNIT or index % _ELEMENTS_PER_UNIT == 0:
                yield 1 + size // _ELEMENTS_PER_UNIT
    return found


def _collect(part: _Part, value: Any, found: list[int]) -> int:
    """Append the error codes of a struct; returns how many elements were looked at."""
    if part.has_code and value.error_code:
        found.append(value.error_code)
    count = 1
    for name, inner in part.structs:
        if (one := getattr(value, name)) is not None:
            count += _collect(inner, one, found)
    for name, inner in part.arrays:
        elements = getattr(value, name) or ()
        if inner.is_leaf:  # partitions, of which there may be many
            found += [element.error_code for element in elements if element.error_code]
            count += len(elements)
            continue
        for element in elements:
            count += _collect(inner, element, found)
    return count


@cache
def _part_of(struct_class: type, version: int) -> _Part | None:
    """None if there is no error code in it."""
    has_code = False
    structs, arrays = [], []
    for name, kind in _kinds(struct_class, version):
        if name == _CODE:
            has_code = True
        elif isinstance(kind, type) and (inner := _part_of(kind, version)) is not None:
            structs.append((name, inner))
        elif (
            isinstance(kind, Array)
            and isinstance(kind.element, type)
            and (inner := _part_of(kind.element, version)) is not None
        ):
            arrays.append((name, inner))
    if not (has_code or structs or arrays):
        return None
    return _Part(has_code, tuple(structs), tuple(arrays), not structs and not arrays)


def _kinds(struct_class: type, version: int) -> Iterator[tuple[str, object]]:
    for item in wire_fields(struct_class):
        if version in item.wire.versions:
            yield item.name, item.wire.kind
