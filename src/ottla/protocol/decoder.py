"""Generates the function that decodes one message in one version.

Positions may run ahead of the buffer's end, because a slice past the end is merely short: then the
next fixed read or the check at the end of the function fails.

`left` counts down from the number of elements that the message may have, in all its arrays and tag
sections together: a few bytes become an object of some hundred, and work for the handler.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, assert_never

from ottla.errors import ProtocolViolation, TooManyElements
from ottla.protocol.codegen import SLICE_ELEMENTS, FunctionSource, Layout, is_repeatable, reaches
from ottla.protocol.primitives import read_tagged_fields, read_unsigned_varint
from ottla.protocol.schema import (
    Array,
    Fixed,
    Kind,
    Sized,
    WireField,
    records,
    string,
    wire_fields,
)

MINIMAL_VARINT_BYTES: Final = 1
STRING_BYTES_MAX: Final = 2**15 - 1  # as in Kafka, also where a length could say more


class DecoderGenerator:
    """Generates `run(buffer, p, left) -> message` for one layout; `p` is the read position.

    In slices, `run` is a generator that yields the number of elements read since its last yield.
    """

    def __init__(self, layout: Layout, *, in_slices: bool = False) -> None:
        self.layout = layout
        self.in_slices = in_slices
        self.source = FunctionSource("run(buffer, p, left)")
        self.pending: list[tuple[str, str]] = []  # (code, target) of the next `struct` call
        # Slices of bytes are cheapest, but record batches must not be copied.
        self.reads_views = reaches(layout.message_class, records)

    def generate(self) -> FunctionSource:
        for name, value in _NAMES.items():
            self.source.refer(name, value)
        self.source.line(f"buffer = {'memoryview' if self.reads_views else 'bytes'}(buffer)")
        self.source.line("end = len(buffer)")
        if self.in_slices:
            self.source.line("done = 0")
        self._struct(self.layout.message_class, "message")
        with self.source.block("if p > end:"):
            self.source.line("raise truncated()")
        if self.in_slices:
            self.source.line("yield done")
        self.source.line("return message")
        return self.source

    def _struct(self, struct_class: type, target: str) -> None:
        self.source.line(f"{target} = new({self._class(struct_class)})")
        ordinary = self.layout.ordinary(struct_class)
        always_read = {item.name for item in ordinary}
        for item in wire_fields(struct_class):
            if item.name not in always_read:
                self.source.line(f"{target}.{item.name} = {self._default(item)}")
        for item in ordinary:
            self._field(item, target)
        if self.layout.flexible:
            self._tag_section(struct_class, target)
        self._flush()

    def _class(self, struct_class: type) -> str:
        return self.source.refer(struct_class.__name__, struct_class)

    def _default(self, item: WireField) -> str:
        """An expression for the default of a field that was not sent."""
        value = item.make_default()
        if isinstance(item.wire.kind, type) and value is not None:
            return f"{self._class(item.wire.kind)}()"
        return repr(value)

    def _tag_section(self, struct_class: type, target: str) -> None:
        tagged = self.layout.tagged(struct_class)
        count = self._prefix("B")
        with self.source.block(f"if {count}:"):
            entries, after = self.source.variable("entries"), self.source.variable("after")
            tag, stop = self.source.variable("tag"), self.source.variable("stop")
            self.source.line(f"{entries}, {after} = read_tagged_fields(buffer, p - 1, end)")
            self._count_elements(f"len({entries})")
            if not tagged:
                self.source.line(f"p = {after}")
                return
            with self.source.block(f"for {tag}, p, {stop} in {entries}:"):
                for item in tagged:
                    with self.source.block(f"if {tag} == {item.wire.tag}:"):
                        self._field(item, target)
                        self._flush()
                        with self.source.block(f"if p != {stop}:"):
                            self.source.line(f"raise not_filled({item.name!r})")
            self.source.line(f"p = {after}")

    def _field(self, item: WireField, owner: str) -> None:
        nullable = self.layout.is_nullable(item)
        self._value(item.wire.kind, f"{owner}.{item.name}", item.name, nullable)

    def _value(self, kind: Kind, target: str, name: str, nullable: bool) -> None:
        match kind:
            case Fixed():
                self.pending.append((kind.code, target))
            case Sized():
                self._sized(kind, target, name, nullable)
            case Array():
                self._array(kind, target, name, nullable)
            case type() as struct_class if (
                nullable
            ):  # KIP-893: one byte says whether the struct follows
                marker = self._prefix("b")
                with self.source.block(f"if {marker} < 0:"):
                    self.source.line(f"{target} = None")
                with self.source.block("else:"):
                    self._inner_struct(struct_class, target)
            case type() as struct_class:
                self._inner_struct(struct_class, target)
            case _ as never:
                assert_never(never)

    def _inner_struct(self, struct_class: type, target: str) -> None:
        inner = self.source.variable("inner")
        self._struct(struct_class, inner)
        self.source.line(f"{target} = {inner}")

    def _sized(self, kind: Sized, target: str, name: str, nullable: bool) -> None:
        length = self._prefix("B" if self.layout.flexible else kind.length_code)
        is_text = kind is string
        with self._length_given(length, target, name, nullable, is_text=is_text):
            stop = self.source.variable("stop")
            self.source.line(f"{stop} = p + {length}{' - 1' if self.layout.flexible else ''}")
            self.source.line(f"{target} = {self._taken(kind, f'buffer[p:{stop}]')}")
            self.source.line(f"p = {stop}")

    def _taken(self, kind: Sized, piece: str) -> str:
        if kind is string:
            return f'str({piece}, "utf-8")' if self.reads_views else f"{piece}.decode()"
        return f"bytes({piece})" if self.reads_views and kind is not records else piece

    def _array(self, kind: Array, target: str, name: str, nullable: bool) -> None:
        count = self._prefix("B" if self.layout.flexible else "i")
        least = self._least_bytes(kind.element, nullable=False)
        assert least > 0, f"elements of {name} take no bytes, so their number has no bound"
        with self._length_given(count, target, name, nullable):
            if self.layout.flexible:
                self.source.line(f"{count} -= 1")
            with self.source.block(f"if {count} > (end - p) // {least}:"):
                self.source.line(f"raise too_many({name!r}, {count}, end - p)")
            self._count_elements(count)
            if isinstance(kind.element, Fixed) and is_repeatable(kind.element):
                unpack = self.source.struct_methods("unpack_from", kind.element.code)
                self.source.line(f"{target} = list({unpack}[{count}](buffer, p))")
                self.source.line(f"p += {count} * {least}")
            else:
                self._elements(kind.element, count, target, name)

    def _elements(self, kind: Kind, count: str, target: str, name: str) -> None:
        items, item = self.source.variable("items"), self.source.variable("item")
        self.source.line(f"{target} = {items} = []")
        with self.source.block(f"for _ in range({count}):"):
            if isinstance(kind, type):
                self._struct(kind, item)
            else:
                self._value(kind, item, name, nullable=False)
                self._flush()
            self.source.line(f"{items}.append({item})")
            if self.in_slices:
                self.source.line("done += 1")
                with self.source.block(f"if done >= {SLICE_ELEMENTS}:"):
                    self.source.line("yield done")
                    self.source.line("done = 0")

    def _count_elements(self, count: str) -> None:
        """Count elements against the limit, before objects are made of them."""
        self.source.line(f"left -= {count}")
        with self.source.block("if left < 0:"):
            self.source.line("raise TooManyElements()")

    def _prefix(self, code: str) -> str:
        """Read a length together with the fixed fields before it; return its variable."""
        length = self.source.variable("n")
        self.pending.append((code, length))
        self._flush()
        return length

    @contextmanager
    def _length_given(
        self, length: str, target: str, name: str, nullable: bool, *, is_text: bool = False
    ) -> Iterator[None]:
        """A block for a length that is not null; the other branches handle null or refuse it.

        Flexible versions write lengths plus one as varints, nearly always of a single byte.
        """
        flexible = self.layout.flexible
        if flexible:
            with self.source.block(f"if {length} > 127:"):
                self.source.line(f"{length}, p = read_unsigned_varint(buffer, p - 1)")
                if is_text:
                    with self.source.block(f"if {length} > {STRING_BYTES_MAX + 1}:"):
                        self.source.line(f"raise too_long({name!r}, {length} - 1)")
        with self.source.block(f"if {length}:" if flexible else f"if {length} >= 0:"):
            yield
        if nullable:
            with self.source.block("else:" if flexible else f"elif {length} == -1:"):
                self.source.line(f"{target} = None")
        if not (nullable and flexible):
            wrong = f"null({name!r})" if flexible else f"negative({name!r}, {length})"
            with self.source.block("else:"):
                self.source.line(f"raise {wrong}")

    def _flush(self) -> None:
        """Write the one `struct` call that reads all pending fields."""
        codes = "".join(code for code, _ in self.pending)
        targets = [target for _, target in self.pending]
        self.pending.clear()
        if codes == "B":
            self.source.line(f"{targets[0]} = buffer[p]")
            self.source.line("p += 1")
        elif codes:
            unpack = self.source.struct_method("unpack_from", codes)
            comma = "," if len(targets) == 1 else ""
            self.source.line(f"{', '.join(targets)}{comma} = {unpack}(buffer, p)")
            self.source.line(f"p += {struct.calcsize('>' + codes)}")

    def _least_bytes(self, kind: Kind, nullable: bool) -> int:
        """The smallest number of bytes that a value takes."""
        flexible = self.layout.flexible
        match kind:
            case Fixed():
                return kind.size_bytes
            case Sized():
                return MINIMAL_VARINT_BYTES if flexible else struct.calcsize(kind.length_code)
            case Array():
                return MINIMAL_VARINT_BYTES if flexible else struct.calcsize("i")
            case type() if nullable:
                return struct.calcsize("b")
            case type() as struct_class:
                return (MINIMAL_VARINT_BYTES if flexible else 0) + sum(
                    self._least_bytes(item.wire.kind, self.layout.is_nullable(item))
                    for item in self.layout.ordinary(struct_class)
                )
            case _ as never:
                assert_never(never)


def _null(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"{name} must not be null")


def _negative(name: str, length: int) -> ProtocolViolation:
    return ProtocolViolation(f"{name} has the negative length {length}")


def _too_many(name: str, count: int, left_bytes: int) -> ProtocolViolation:
    return ProtocolViolation(
        f"{name} announces {count} elements, but only {max(left_bytes, 0)} bytes follow"
    )


def _too_long(name: str, size_bytes: int) -> ProtocolViolation:
    return ProtocolViolation(f"{name} has {size_bytes} bytes; a string may have at most 32767")


def _not_filled(name: str) -> ProtocolViolation:
    return ProtocolViolation(f"{name} and its tagged field differ in length")


def _truncated() -> ProtocolViolation:
    return ProtocolViolation("the bytes end inside the message")


_NAMES: Final = {
    "new": object.__new__,
    "read_unsigned_varint": read_unsigned_varint,
    "read_tagged_fields": read_tagged_fields,
    "null": _null,
    "negative": _negative,
    "too_many": _too_many,
    "too_long": _too_long,
    "TooManyElements": TooManyElements,
    "not_filled": _not_filled,
    "truncated": _truncated,
}
