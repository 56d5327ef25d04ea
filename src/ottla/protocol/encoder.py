"""Generates the function that encodes one message in one version."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from ottla.protocol.codegen import SLICE_ELEMENTS, FunctionSource, Layout, is_repeatable
from ottla.protocol.primitives import write_unsigned_varint
from ottla.protocol.schema import Array, Fixed, Kind, Sized, WireField, string


class EncoderGenerator:
    """Generates `run(out, message)` for one layout; the bytes are appended to `out`.

    In slices, `run` is a generator that yields the number of elements written since its last yield.
    """

    def __init__(self, layout: Layout, *, in_slices: bool = False) -> None:
        self.layout = layout
        self.in_slices = in_slices
        self.source = FunctionSource("run(out, message)")
        self.pending: list[tuple[str, str]] = []  # (code, value) of the next `struct` call
        self.out = "out"  # inside a tagged field, the buffer for that field

    def generate(self) -> FunctionSource:
        self.source.refer("write_unsigned_varint", write_unsigned_varint)
        if self.in_slices:
            self.source.line("done = 0")
        self._struct(self.layout.message_class, "message")
        self._flush()
        if self.in_slices:
            self.source.line("yield done")
        self.source.line("return")
        return self.source

    def _struct(self, struct_class: type, owner: str) -> None:
        for item in self.layout.ordinary(struct_class):
            self._field(item, owner)
        if tagged := self.layout.tagged(struct_class):
            self._tag_section(tagged, owner)
        elif self.layout.flexible:
            self.pending.append(("x", ""))  # no tagged fields: a zero byte

    def _field(self, item: WireField, owner: str) -> None:
        self._value(item.wire.kind, f"{owner}.{item.name}", self.layout.is_nullable(item))

    def _tag_section(self, tagged: list[WireField], owner: str) -> None:
        self._flush()
        outer, count = self.out, self.source.variable("count")
        section, self.out = self.source.variable("section"), self.source.variable("body")
        self.source.line(f"{count} = 0")
        self.source.line(f"{section} = bytearray()")
        for item in tagged:
            with self.source.block(f"if {self._differs(item, owner)}:"):
                self.source.line(f"{self.out} = bytearray()")
                self._field(item, owner)
                self._flush()
                self.source.line(f"{count} += 1")
                self.source.line(f"write_unsigned_varint({section}, {item.wire.tag})")
                self.source.line(f"write_unsigned_varint({section}, len({self.out}))")
                self.source.line(f"{section} += {self.out}")
        self.out = outer
        self.source.line(f"{self.out}.append({count})")
        self.source.line(f"{self.out} += {section}")

    def _differs(self, item: WireField, owner: str) -> str:
        """A condition: the field differs from its default."""
        value, default = f"{owner}.{item.name}", item.make_default()
        if default is None:
            return f"{value} is not None"
        if isinstance(item.wire.kind, type):
            return f"{value} != {self.source.refer(f'default_{item.name}', default)}"
        return f"{value} != {default!r}"

    def _value(self, kind: Kind, value: str, nullable: bool) -> None:
        match kind:
            case Fixed():
                self.pending.append((kind.code, value))
            case Sized():
                self._sized(kind, value, nullable)
            case Array():
                self._array(kind, value, nullable)
            case type() as struct_class if nullable:
                self._nullable_struct(struct_class, value)
            case type() as struct_class:
                inner = self.source.variable("inner")
                self.source.line(f"{inner} = {value}")
                self._struct(struct_class, inner)
            case _ as never:
                assert_never(never)

    def _nullable_struct(self, struct_class: type, value: str) -> None:
        """KIP-893: one byte, -1 or 1, says whether the struct follows."""
        self._flush()
        inner = self.source.variable("inner")
        self.source.line(f"{inner} = {value}")
        with self.source.block(f"if {inner} is None:"):
            self.source.line(f"{self.out}.append(255)")
        with self.source.block("else:"):
            self.source.line(f"{self.out}.append(1)")
            self._struct(struct_class, inner)
            self._flush()

    def _sized(self, kind: Sized, value: str, nullable: bool) -> None:
        content, length = self.source.variable("content"), self.source.variable("n")
        self.source.line(f"{content} = {value}")
        with self._value_given(content, length, 'b""', nullable):
            if kind is string:
                self.source.line(f"{content} = {content}.encode()")
            self.source.line(f"{length} = len({content}){self._plus_one()}")
        self._prefix("B" if self.layout.flexible else kind.length_code, length)
        self.source.line(f"{self.out} += {content}")

    def _array(self, kind: Array, value: str, nullable: bool) -> None:
        items, count = self.source.variable("items"), self.source.variable("n")
        self.source.line(f"{items} = {value}")
        with self._value_given(items, count, "()", nullable):
            self.source.line(f"{count} = len({items}){self._plus_one()}")
        self._prefix("B" if self.layout.flexible else "i", count)
        if isinstance(kind.element, Fixed) and is_repeatable(kind.element):
            pack = self.source.struct_methods("pack", kind.element.code)
            with self.source.block(f"if {items}:"):
                self.source.line(f"{self.out} += {pack}[len({items})](*{items})")
        else:
            self._elements(kind.element, items)

    def _elements(self, kind: Kind, items: str) -> None:
        item = self.source.variable("item")
        with self.source.block(f"for {item} in {items}:"):
            if isinstance(kind, type):
                self._struct(kind, item)
            else:
                self._value(kind, item, nullable=False)
            self._flush()
            if self.in_slices:
                self.source.line("done += 1")
                with self.source.block(f"if done >= {SLICE_ELEMENTS}:"):
                    self.source.line("yield done")
                    self.source.line("done = 0")

    def _plus_one(self) -> str:
        return " + 1" if self.layout.flexible else ""

    @contextmanager
    def _value_given(self, value: str, length: str, nothing: str, nullable: bool) -> Iterator[None]:
        """A block for a value that is not null; null has a length of its own."""
        if not nullable:
            yield
            return
        with self.source.block(f"if {value} is None:"):
            self.source.line(f"{value} = {nothing}")
            self.source.line(f"{length} = {0 if self.layout.flexible else -1}")
        with self.source.block("else:"):
            yield

    def _prefix(self, code: str, length: str) -> None:
        """Write a length together with the fixed fields before it."""
        if not self.layout.flexible:
            self.pending.append((code, length))
            self._flush()
            return
        before = list(self.pending)
        with self.source.block(f"if {length} < 128:"):
            self.pending.append((code, length))
            self._flush()
        self.pending = before
        with self.source.block("else:"):
            self._flush()
            self.source.line(f"write_unsigned_varint({self.out}, {length})")

    def _flush(self) -> None:
        """Write the one `struct` call that writes all pending fields."""
        codes = "".join(code for code, _ in self.pending)
        values = [value for _, value in self.pending if value]
        self.pending.clear()
        if codes == "B":
            self.source.line(f"{self.out}.append({values[0]})")
        elif codes == "x":
            self.source.line(f"{self.out}.append(0)")
        elif codes:
            pack = self.source.struct_method("pack", codes)
            self.source.line(f"{self.out} += {pack}({', '.join(values)})")
