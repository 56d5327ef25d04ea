"""Messages to bytes and back, by functions written for one message in one version.

The first time a version of a message is met, this module writes the Python source of its encoder
or decoder from the class (see `schema`) and compiles it; from then on there is no interpretation.
What makes the written code fast is that neighbouring fields of fixed size, together with the length
that follows them, are one `struct` call, and that nested structs are inlined instead of called.
`encoder_source` and `decoder_source` show the source; tracebacks show its lines.

Decoders trust nothing. A slice past the end of the buffer is merely short, so positions may run
ahead of the end, but then the next fixed read fails, or the check at the end does. An array may
announce no more elements than the remaining bytes could hold. Bytes behind a message are ignored,
because librdkafka sends some. Everything wrong is a `ProtocolViolation`.

Encoders trust the caller: a number out of range or a null where the version has none is our own
mistake and raises whatever Python raises. A field that a version does not have is left out without
a word, also when it holds a value; a tagged field is left out while it holds its default.
"""

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ottla.errors import ProtocolViolation
from ottla.protocol.primitives import Buffer, read_unsigned_varint, write_unsigned_varint
from ottla.protocol.schema import (
    Array,
    Fixed,
    Kind,
    Sized,
    WireField,
    message_versions,
    records,
    string,
    wire_fields,
)

TAGGED_FIELDS_MAX: Final = 256  # in one struct; Kafka 4.3 defines at most four
_REMEMBERED_COUNT_MAX: Final = 64  # arrays of numbers up to this length keep their `struct` object

M = TypeVar("M")
Decoder = Callable[[Buffer, int], Any]  # (buffer, position) -> message
Encoder = Callable[[bytearray, Any], None]  # (out, message)


def decode(message_class: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Read the message that starts at `position`; what follows it in the buffer is ignored.

    Views in the result (fields of kind `records`) share the buffer's memory.
    """
    try:
        decoded: M = _DECODERS[message_class, version](buffer, position)
    except ProtocolViolation as violation:
        raise ProtocolViolation(f"{message_class.__name__} v{version}: {violation}") from None
    except (struct.error, IndexError):
        raise ProtocolViolation(
            f"{message_class.__name__} v{version}: the bytes end inside the message"
        ) from None
    except UnicodeDecodeError:
        raise ProtocolViolation(
            f"{message_class.__name__} v{version}: a string is not UTF-8"
        ) from None
    return decoded


def encode(message: object, version: int) -> bytes:
    """The bytes of a message in one of its versions, without any header."""
    out = bytearray()
    _ENCODERS[type(message), version](out, message)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int) -> None:
    """Append the bytes of a message, for example behind a header."""
    _ENCODERS[type(message), version](out, message)


def decoder_source(message_class: type, version: int) -> str:
    """The source of the function that reads one version, for people who want to see it."""
    return _DecoderWriter(message_class, version).source()


def encoder_source(message_class: type, version: int) -> str:
    """The source of the function that writes one version, for people who want to see it."""
    return _EncoderWriter(message_class, version).source()


class _Functions(dict[tuple[type, int], Callable[..., Any]]):
    """Functions by (message class, version), compiled when first asked for."""

    def __init__(self, writer: "type[_DecoderWriter | _EncoderWriter]") -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, key: tuple[type, int]) -> Callable[..., Any]:
        function = self[key] = self._writer(*key).compile()
        return function


class _Repeated(dict[int, Callable[..., Any]]):
    """By count, the `struct` method for that many numbers in a row.

    Only short counts are remembered, so that nobody can fill the memory with odd ones.
    """

    def __init__(self, code: str, method: str) -> None:
        super().__init__()
        self._code = code
        self._method = method

    def __missing__(self, count: int) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(struct.Struct(f">{count}{self._code}"), self._method)
        if count <= _REMEMBERED_COUNT_MAX:
            self[count] = made
        return made


class _Writer:
    """Writes one function: lines of source, and the names they refer to.

    `pending` holds the fixed reads or writes that will share the next `struct` call.
    """

    method: str  # of struct.Struct

    def __init__(self, message_class: type, version: int) -> None:
        versions = message_versions(message_class)
        assert version in versions.valid, f"{message_class.__name__} has no version {version}"
        self.message_class = message_class
        self.version = version
        self.flexible = version in versions.flexible
        self.lines: list[str] = []
        self.indent = 1
        self.pending: list[tuple[str, str]] = []
        self.names: dict[str, Any] = {}
        self.variable_count = 0

    def source(self) -> str:
        raise NotImplementedError

    def compile(self) -> Callable[..., Any]:
        """Make the function, and let tracebacks find its source."""
        source = self.source()
        filename = f"<{type(self).__name__[1:]} {self.message_class.__name__} v{self.version}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        # The source is made from our own classes only; nothing in it came over a network.
        exec(compile(source, filename, "exec"), self.names)  # noqa: S102
        function: Callable[..., Any] = self.names["run"]
        return function

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Lines written inside are one step further in."""
        self.line(opening)
        self.indent += 1
        yield
        self.indent -= 1

    def variable(self, stem: str) -> str:
        self.variable_count += 1
        return f"{stem}{self.variable_count}"

    def refer(self, name: str, value: Any) -> str:
        """Let the source use `value` under `name`."""
        assert self.names.setdefault(name, value) is value, name
        return name

    def struct_call(self, codes: str) -> str:
        """Name a method of `struct.Struct` for a run of fixed fields."""
        name = f"{self.method}_{codes.replace('?', 'bool')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + codes), self.method)
        return name

    def repeated(self, code: str) -> str:
        table = _REPEATED[self.method, code]
        return self.refer(f"{self.method}_many_{code}", table)

    def present(self, struct_class: type) -> tuple[list[WireField], list[WireField]]:
        """The fields that this version has: ordinary ones, and tagged ones by tag."""
        here = [item for item in wire_fields(struct_class) if self.version in item.wire.versions]
        tagged = [item for item in here if item.wire.tag is not None]
        assert self.flexible or not tagged, struct_class
        return (
            [item for item in here if item.wire.tag is None],
            sorted(tagged, key=lambda item: item.wire.tag or 0),
        )

    def default(self, item: WireField) -> str:
        """An expression for the value of a field that was left out."""
        value = item.make_default()
        match item.wire.kind:
            case Array() if value == []:
                return "[]"
            case type() as struct_class if value is not None:
                return f"{self.refer(struct_class.__name__, struct_class)}()"
            case _:
                return repr(value)


class _DecoderWriter(_Writer):
    method = "unpack_from"

    def source(self) -> str:
        self.pending, self.lines, self.indent = [], [], 1
        # Slices of bytes are cheapest, but record batches must not be copied.
        self.views = _holds_records(self.message_class)
        self.refer("read_unsigned_varint", read_unsigned_varint)
        self.refer("read_tagged_fields", read_tagged_fields)
        self.refer("new", object.__new__)
        for raiser in (_null, _negative, _too_many, _not_filled, _truncated):
            self.refer(raiser.__name__.removeprefix("_"), raiser)
        self.line(f"buffer = {'memoryview' if self.views else 'bytes'}(buffer)")
        self.line("end = len(buffer)")
        self.read_struct(self.message_class, "message")
        with self.block("if p > end:"):
            self.line("raise truncated()")
        self.line("return message")
        return "\n".join(["def run(buffer, p):", *self.lines, ""])

    def read_struct(self, struct_class: type, target: str) -> None:
        self.line(f"{target} = new({self.refer(struct_class.__name__, struct_class)})")
        ordinary, tagged = self.present(struct_class)
        read_for_sure = {item.name for item in ordinary}
        for item in wire_fields(struct_class):
            if item.name not in read_for_sure:
                self.line(f"{target}.{item.name} = {self.default(item)}")
        for item in ordinary:
            self.read(item, target)
        if self.flexible:
            self.read_tagged(struct_class, target, tagged)
        self.flush()

    def read_tagged(self, struct_class: type, target: str, tagged: list[WireField]) -> None:
        count = self.read_prefix("B")
        with self.block(f"if {count}:"):
            entries = self.variable("entries") if tagged else "_"
            after = self.variable("after") if tagged else "p"
            self.line(f"{entries}, {after} = read_tagged_fields(buffer, p - 1, end)")
            if not tagged:
                return
            tag, stop = self.variable("tag"), self.variable("stop")
            with self.block(f"for {tag}, p, {stop} in {entries}:"):
                for position, item in enumerate(tagged):
                    with self.block(f"{'elif' if position else 'if'} {tag} == {item.wire.tag}:"):
                        self.read(item, target)
                        self.flush()
                        with self.block(f"if p != {stop}:"):
                            self.line(
                                f"raise not_filled({struct_class.__name__ + '.' + item.name!r})"
                            )
            self.line(f"p = {after}")

    def read(self, item: WireField, owner: str) -> None:
        """Read one field into its attribute."""
        nullable = self.version in item.wire.nullable
        self.read_value(item.wire.kind, f"{owner}.{item.name}", item.name, nullable)

    def read_value(self, kind: Kind, target: str, name: str, nullable: bool) -> None:
        match kind:
            case Fixed():
                self.pending.append((kind.code, target))
            case Sized():
                self.read_sized(kind, target, name, nullable)
            case Array():
                self.read_array(kind, target, name, nullable)
            case type() as struct_class if nullable:  # KIP-893: one byte says whether it is there
                marker = self.read_prefix("b")
                with self.block(f"if {marker} < 0:"):
                    self.line(f"{target} = None")
                with self.block("else:"):
                    self.read_inner_struct(struct_class, target)
            case type() as struct_class:
                self.read_inner_struct(struct_class, target)

    def read_inner_struct(self, struct_class: type, target: str) -> None:
        inner = self.variable("inner")
        self.read_struct(struct_class, inner)
        self.line(f"{target} = {inner}")

    def read_sized(self, kind: Sized, target: str, name: str, nullable: bool) -> None:
        length = self.read_prefix("B" if self.flexible else kind.length_code)
        with self.length_given(length, target, name, nullable):
            stop = self.variable("stop")
            self.line(f"{stop} = p + {length}{' - 1' if self.flexible else ''}")
            self.line(f"{target} = {self.taken(kind, f'buffer[p:{stop}]')}")
            self.line(f"p = {stop}")

    def taken(self, kind: Sized, piece: str) -> str:
        if kind is string:
            return f'str({piece}, "utf-8")' if self.views else f"{piece}.decode()"
        return f"bytes({piece})" if self.views and kind is not records else piece

    def read_array(self, kind: Array, target: str, name: str, nullable: bool) -> None:
        count = self.read_prefix("B" if self.flexible else "i")
        with self.length_given(count, target, name, nullable):
            if self.flexible:
                self.line(f"{count} -= 1")
            least = self.least_bytes(kind.element)
            assert least > 0, f"elements of {name} must take up room, or their number has no bound"
            with self.block(f"if {count} > (end - p) // {least}:"):
                self.line(f"raise too_many({name!r}, {count}, end - p)")
            if isinstance(kind.element, Fixed) and kind.element.code in _REPEATABLE_CODES:
                unpack = self.repeated(kind.element.code)
                self.line(f"{target} = list({unpack}[{count}](buffer, p))")
                self.line(f"p += {count} * {least}")
            else:
                self.read_elements(kind.element, count, target, name)

    def read_elements(self, kind: Kind, count: str, target: str, name: str) -> None:
        items, item = self.variable("items"), self.variable("item")
        self.line(f"{target} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(kind, type):
                self.read_struct(kind, item)
            else:
                self.read_value(kind, item, name, nullable=False)
            self.flush()
            self.line(f"{items}.append({item})")

    def read_prefix(self, code: str) -> str:
        """Read a length together with the fixed fields before it; return its variable.

        Flexible versions write lengths as varints of nearly always one byte.
        """
        length = self.variable("n")
        self.pending.append((code, length))
        self.flush()
        return length

    @contextmanager
    def length_given(self, length: str, target: str, name: str, nullable: bool) -> Iterator[None]:
        """A block for the case that a length is there; the others are null or wrong."""
        if self.flexible:
            with self.block(f"if {length} > 127:"):
                self.line(f"{length}, p = read_unsigned_varint(buffer, p - 1)")
        with self.block(f"if {length}:" if self.flexible else f"if {length} >= 0:"):
            yield
        if nullable:
            with self.block("else:" if self.flexible else f"elif {length} == -1:"):
                self.line(f"{target} = None")
        if not (nullable and self.flexible):
            with self.block("else:"):
                wrong = f"null({name!r})" if self.flexible else f"negative({name!r}, {length})"
                self.line(f"raise {wrong}")

    def flush(self) -> None:
        """Write the one `struct` call that reads all pending fields."""
        codes = "".join(code for code, _ in self.pending)
        targets = [target for _, target in self.pending]
        self.pending.clear()
        if codes == "B":
            self.line(f"{targets[0]} = buffer[p]")
            self.line("p += 1")
        elif codes:
            comma = "," if len(targets) == 1 else ""
            self.line(f"{', '.join(targets)}{comma} = {self.struct_call(codes)}(buffer, p)")
            self.line(f"p += {struct.calcsize('>' + codes)}")

    def least_bytes(self, kind: Kind, nullable: bool = False) -> int:
        """How many bytes a value takes at least in this version."""
        match kind:
            case Fixed():
                return kind.size_bytes
            case Sized():
                return 1 if self.flexible else struct.calcsize(">" + kind.length_code)
            case Array():
                return 1 if self.flexible else 4
            case type() as struct_class:
                ordinary, _ = self.present(struct_class)
                least = sum(
                    self.least_bytes(item.wire.kind, self.version in item.wire.nullable)
                    for item in ordinary
                )
                return 1 if nullable else least + self.flexible


class _EncoderWriter(_Writer):
    method = "pack"

    def source(self) -> str:
        self.pending, self.lines, self.indent = [], [], 1
        self.out = "out"
        self.refer("write_unsigned_varint", write_unsigned_varint)
        self.write_struct(self.message_class, "message")
        self.flush()
        return "\n".join(["def run(out, message):", *(self.lines or ["    pass"]), ""])

    def write_struct(self, struct_class: type, owner: str) -> None:
        ordinary, tagged = self.present(struct_class)
        for item in ordinary:
            nullable = self.version in item.wire.nullable
            self.write(item.wire.kind, f"{owner}.{item.name}", nullable)
        if tagged:
            self.write_tagged(owner, tagged)
        elif self.flexible:
            self.pending.append(("x", ""))  # no tagged fields: a zero

    def write_tagged(self, owner: str, tagged: list[WireField]) -> None:
        self.flush()
        count, section = self.variable("count"), self.variable("section")
        outer, body = self.out, self.variable("body")
        self.line(f"{count} = 0")
        self.line(f"{section} = bytearray()")
        for item in tagged:
            value = f"{owner}.{item.name}"
            with self.block(f"if {self.differs(value, item)}:"):
                self.line(f"{body} = bytearray()")
                self.out = body
                self.write(item.wire.kind, value, self.version in item.wire.nullable)
                self.flush()
                self.line(f"{count} += 1")
                self.line(f"write_unsigned_varint({section}, {item.wire.tag})")
                self.line(f"write_unsigned_varint({section}, len({body}))")
                self.line(f"{section} += {body}")
        self.out = outer
        self.line(f"{self.out}.append({count})")
        self.line(f"{self.out} += {section}")

    def differs(self, value: str, item: WireField) -> str:
        default = item.make_default()
        if default is None:
            return f"{value} is not None"
        if isinstance(item.wire.kind, type):
            kept = self.refer(f"default_{item.wire.kind.__name__}", default)
            return f"{value} != {kept}"
        return f"{value} != {default!r}"

    def write(self, kind: Kind, value: str, nullable: bool) -> None:
        match kind:
            case Fixed():
                self.pending.append((kind.code, value))
            case Sized():
                self.write_sized(kind, value, nullable)
            case Array():
                self.write_array(kind, value, nullable)
            case type() as struct_class if nullable:
                self.write_nullable_struct(struct_class, value)
            case type() as struct_class:
                inner = self.variable("inner")
                self.line(f"{inner} = {value}")
                self.write_struct(struct_class, inner)

    def write_nullable_struct(self, struct_class: type, value: str) -> None:
        self.flush()
        inner = self.variable("inner")
        self.line(f"{inner} = {value}")
        with self.block(f"if {inner} is None:"):
            self.line(f"{self.out}.append(255)")  # int8 -1
        with self.block("else:"):
            self.line(f"{self.out}.append(1)")
            self.write_struct(struct_class, inner)
            self.flush()

    def write_sized(self, kind: Sized, value: str, nullable: bool) -> None:
        content, length = self.variable("content"), self.variable("n")
        self.line(f"{content} = {value}")
        with self.value_given(content, length, 'b""', nullable):
            if kind is string:
                self.line(f"{content} = {content}.encode()")
            self.line(f"{length} = len({content}){' + 1' if self.flexible else ''}")
        self.write_prefix("B" if self.flexible else kind.length_code, length)
        self.line(f"{self.out} += {content}")

    def write_array(self, kind: Array, value: str, nullable: bool) -> None:
        items, count = self.variable("items"), self.variable("n")
        self.line(f"{items} = {value}")
        with self.value_given(items, count, "()", nullable):
            self.line(f"{count} = len({items}){' + 1' if self.flexible else ''}")
        self.write_prefix("B" if self.flexible else "i", count)
        if isinstance(kind.element, Fixed) and kind.element.code in _REPEATABLE_CODES:
            pack = self.repeated(kind.element.code)
            with self.block(f"if {items}:"):
                self.line(f"{self.out} += {pack}[len({items})](*{items})")
            return
        item = self.variable("item")
        with self.block(f"for {item} in {items}:"):
            if isinstance(kind.element, type):
                self.write_struct(kind.element, item)
            else:
                self.write(kind.element, item, nullable=False)
            self.flush()

    @contextmanager
    def value_given(self, value: str, length: str, nothing: str, nullable: bool) -> Iterator[None]:
        """Lines for the case that there is a value; null has a length of its own."""
        if not nullable:
            yield
            return
        with self.block(f"if {value} is None:"):
            self.line(f"{value} = {nothing}")
            self.line(f"{length} = {0 if self.flexible else -1}")
        with self.block("else:"):
            yield

    def write_prefix(self, code: str, length: str) -> None:
        """Write a length together with the fixed fields before it."""
        if not self.flexible:
            self.pending.append((code, length))
            self.flush()
            return
        before = list(self.pending)
        with self.block(f"if {length} < 128:"):
            self.pending.append((code, length))
            self.flush()
        self.pending = before
        with self.block("else:"):
            self.flush()
            self.line(f"write_unsigned_varint({self.out}, {length})")

    def flush(self) -> None:
        """Write the one `struct` call that writes all pending fields."""
        codes = "".join(code for code, _ in self.pending)
        values = [value for _, value in self.pending if value]
        self.pending.clear()
        if codes == "B":
            self.line(f"{self.out}.append({values[0]})")
        elif codes == "x":
            self.line(f"{self.out}.append(0)")
        elif codes:
            self.line(f"{self.out} += {self.struct_call(codes)}({', '.join(values)})")


def _holds_records(kind: Kind) -> bool:
    match kind:
        case Array():
            return _holds_records(kind.element)
        case type() as struct_class:
            return any(_holds_records(item.wire.kind) for item in wire_fields(struct_class))
        case _:
            return kind is records


def read_tagged_fields(
    buffer: Buffer, position: int, end: int
) -> tuple[list[tuple[int, int, int]], int]:
    """The (tag, start, stop) of each field in a tag section, and the position behind it."""
    count, position = read_unsigned_varint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolViolation(f"{count} tagged fields in one struct")
    entries = []
    last_tag = -1
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        if tag <= last_tag:
            raise ProtocolViolation(f"tag {tag} follows tag {last_tag}")
        last_tag = tag
        size_bytes, start = read_unsigned_varint(buffer, position)
        position = start + size_bytes
        if position > end:
            raise _truncated()
        entries.append((tag, start, position))
    return entries, position


def _null(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"{name} is null, and may not be")


def _negative(name: str, length: int) -> ProtocolViolation:
    return ProtocolViolation(f"{name} has a length of {length}")


def _too_many(name: str, count: int, left_bytes: int) -> ProtocolViolation:
    return ProtocolViolation(
        f"{name} announces {count} elements, but only {max(left_bytes, 0)} bytes follow"
    )


def _not_filled(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"{name} does not end where its tagged field ends")


def _truncated() -> ProtocolViolation:
    return ProtocolViolation("the bytes end inside the message")


_REPEATABLE_CODES: Final = "bhHiqd"
_REPEATED: Final = {
    (method, code): _Repeated(code, method)
    for method in ("unpack_from", "pack")
    for code in _REPEATABLE_CODES
}
_DECODERS: Final = _Functions(_DecoderWriter)
_ENCODERS: Final = _Functions(_EncoderWriter)
