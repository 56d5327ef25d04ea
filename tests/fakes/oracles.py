"""Other implementations of the same messages, asked to read our bytes and to write their own.

kio also returns what it read as a plain tree of {field name: value}, because bytes alone would not
show two fields of the same type that changed places. kafka-python bends some values to its own
needs (authorized operations become sets), so only its bytes are a witness.
"""

import dataclasses
import datetime as dt
import importlib
import io
import re
import uuid
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple, get_args, get_type_hints

from kio.serial import entity_reader, entity_writer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files the old way
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

_EPOCH = dt.datetime.fromtimestamp(0, tz=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)
_KAFKA_PYTHON = (
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.consumer,
    kafka.protocol.admin,
    kafka.protocol.sasl,
)
# kafka-python bends these two to its own needs: a fall-back to version 0 while reading, names and
# ids in one list while writing.
_BENT = {"ApiVersionsResponse", "DeleteTopicsRequest"}


class Opinion(NamedTuple):
    """The bytes an oracle writes for what it read, and what that was."""

    rewritten: bytes
    tree: dict[str, Any] | None = None


def ask_kio(name: str, version: int, wire: bytes) -> Opinion | None:
    """kio's opinion on a message, or None when it does not have this version."""
    entity_class = _kio_class(name, version)
    if entity_class is None:
        return None
    entity, size = entity_reader(entity_class)(wire, 0)
    assert size == len(wire), "kio left bytes over"
    out = io.BytesIO()
    entity_writer(entity_class)(out, entity)
    return Opinion(out.getvalue(), _kio_tree(entity))


def kio_defaults(name: str, version: int) -> dict[str, Any]:
    """The default of each field for which kio states one, nested as the fields are."""
    entity_class = _kio_class(name, version)
    assert entity_class is not None, f"kio does not know {name} v{version}"
    return _defaults_of(entity_class)


def ask_kafka_python(name: str, version: int, wire: bytes) -> Opinion | None:
    """kafka-python's opinion on a message, or None when it does not have this version."""
    message_class = next(
        (getattr(module, name) for module in _KAFKA_PYTHON if hasattr(module, name)), None
    )
    if message_class is None or name in _BENT or version > message_class.max_version:
        return None
    message = message_class.decode(wire, version=version)
    return Opinion(bytes(message.encode()))


def _kio_class(name: str, version: int) -> type[Any] | None:
    api, kind = _split(name)
    try:
        module = importlib.import_module(f"kio.schema.{_snake(api)}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    found: type[Any] = getattr(module, name)
    return found


def _defaults_of(entity_class: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(entity_class)
    defaults: dict[str, Any] = {}
    for item in dataclasses.fields(entity_class):
        inner = [part for part in _parts(hints[item.name]) if hasattr(part, "__version__")]
        if inner:
            defaults[item.name] = _defaults_of(inner[0])
        elif item.default is None and item.metadata["kafka_type"] == "datetime_i64":
            defaults[item.name] = -1  # no date
        elif item.default is not dataclasses.MISSING:
            defaults[item.name] = _kio_tree(item.default)
    return defaults


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from _parts(argument)


def _split(name: str) -> tuple[str, str]:
    for kind in ("Request", "Response"):
        if name.endswith(kind):
            return name.removesuffix(kind), kind.lower()
    return name, "data"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _kio_tree(value: Any) -> Any:
    match value:
        case tuple():
            return [_kio_tree(item) for item in value]
        case uuid.UUID():
            return value.bytes
        case Enum():
            return value.value
        case dt.timedelta():
            return value // _MILLISECOND
        case dt.datetime():
            return (value - _EPOCH) // _MILLISECOND
        case _ if dataclasses.is_dataclass(value):
            return {
                item.name: _kio_tree(getattr(value, item.name))
                for item in dataclasses.fields(value)
            }
        case _:
            return value
