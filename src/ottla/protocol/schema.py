"""Declarations of messages: kinds of values, fields, structs and messages.

A message is a dataclass. Each field declares its wire format and its versions:

    @message(versions="0-13", flexible="9+")
    class MetadataRequest:
        topics: list[MetadataRequestTopic] | None = wire(
            array(MetadataRequestTopic), "0+", nullable="1+"
        )

Version ranges use Kafka's notation. "Flexible" versions write lengths as varints and end every
struct with tagged fields (KIP-482). `codec` turns these declarations into functions.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from struct import calcsize
from typing import Any, Final, TypeVar, dataclass_transform

from ottla.model import NO_UUID
from ottla.protocol.primitives import Buffer

VERSION_MAX: Final = 2**15 - 1  # a version is an int16 on the wire

Records = Buffer  # record batches, undecoded: a view into the buffer, not a copy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that always takes the same number of bytes; `code` is how `struct` spells it."""

    name: str
    code: str
    default: Any

    @property
    def size_bytes(self) -> int:
        return calcsize(">" + self.code)


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes preceded by their length; `length_code` is its `struct` code, unless flexible."""

    name: str
    length_code: str
    default: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Elements preceded by their count."""

    element: "Fixed | Sized | type"


Kind = Fixed | Sized | Array | type  # a type is a class made by `struct`

int8 = Fixed("int8", "b", 0)
int16 = Fixed("int16", "h", 0)
uint16 = Fixed("uint16", "H", 0)
int32 = Fixed("int32", "i", 0)
int64 = Fixed("int64", "q", 0)
float64 = Fixed("float64", "d", 0.0)
boolean = Fixed("boolean", "?", False)
uuid = Fixed("uuid", "16s", NO_UUID)
string = Sized("string", "h", "")
binary = Sized("binary", "i", b"")  # decodes to a copy
records = Sized("records", "i", None)  # decodes to a view into the buffer


def array(element: Fixed | Sized | type) -> Array:
    """The kind of a list of `element`."""
    return Array(element)


@dataclass(frozen=True, slots=True)
class Wire:
    """The wire format of one field: kind, versions, versions in which it may be null, tag."""

    kind: Kind
    versions: range
    nullable: range
    tag: int | None


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a struct: its name, wire format and default."""

    name: str
    wire: Wire
    make_default: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class MessageVersions:
    """The versions of a message, and the flexible ones among them."""

    valid: range
    flexible: range


def wire(
    kind: Kind, versions: str, *, nullable: str = "none", tag: int | None = None, default: Any = ...
) -> Any:
    """A field of a struct; without `default` it is the zero value of its kind."""
    about = Wire(kind, parse_versions(versions), parse_versions(nullable), tag)
    if default is ...:
        match kind:
            case Array():
                return field(default_factory=list, metadata={"wire": about})
            case type():
                return field(default_factory=kind, metadata={"wire": about})
            case _:
                default = kind.default
    return field(default=default, metadata={"wire": about})


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Class decorator for a part of a message, whose versions are those of the message."""
    # dataclass generates and compiles every method it makes. Two that all structs can share
    # are not made for each of hundreds: that is a good part of a broker's start-up time.
    cls.__eq__ = _equal  # type: ignore[method-assign]
    cls.__repr__ = _represent  # type: ignore[method-assign]
    cls.__hash__ = None  # type: ignore[assignment]
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)


@dataclass_transform(kw_only_default=True)
def message(*, versions: str, flexible: str) -> Callable[[type[T]], type[T]]:
    """Class decorator for a message with the versions in which it exists."""
    about = MessageVersions(parse_versions(versions), parse_versions(flexible))

    def decorate(cls: type[T]) -> type[T]:
        made = struct(cls)
        made.__message_versions__ = about  # type: ignore[attr-defined]
        return made

    return decorate


def message_versions(message_class: type) -> MessageVersions:
    """The versions that `message` declared for a class."""
    about: MessageVersions = message_class.__message_versions__  # type: ignore[attr-defined]
    return about


def wire_fields(struct_class: type) -> tuple[WireField, ...]:
    """The fields of a struct or message in wire order."""
    return tuple(
        WireField(
            item.name,
            item.metadata["wire"],
            _constant(item.default) if item.default_factory is MISSING else item.default_factory,
        )
        for item in fields(struct_class)
    )


def parse_versions(text: str) -> range:
    """Kafka's notation for versions: `3-7`, `3+`, `3` or `none`."""
    if text == "none":
        return range(0)
    first, dash, last = text.partition("-")
    if dash:
        return range(int(first), int(last) + 1)
    if text.endswith("+"):
        return range(int(text[:-1]), VERSION_MAX + 1)
    return range(int(text), int(text) + 1)


def _equal(self: object, other: object) -> bool:
    if type(self) is not type(other):
        return False
    names = self.__slots__  # type: ignore[attr-defined]
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _represent(self: object) -> str:
    names = self.__slots__  # type: ignore[attr-defined]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__name__}({values})"


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value
