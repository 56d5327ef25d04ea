"""Code generation shared by `decoder` and `encoder`, which generate a function per message version.

Indentation, fresh variables, compilation, and the `struct` methods for runs of fixed fields.
"""

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ottla.protocol.schema import Array, Fixed, Kind, WireField, message_versions, wire_fields

REPEATABLE_CODES: Final = "bhHiqd"  # an array of these is one `struct` call as well
SLICE_ELEMENTS: Final = 200  # between two yields of a function that reads or writes in slices
_CACHED_COUNT_MAX: Final = 64

Function = Callable[..., Any]


class Layout:
    """A message in one version: the fields it has on the wire, and whether it is flexible."""

    def __init__(self, message_class: type, version: int) -> None:
        versions = message_versions(message_class)
        assert version in versions.valid, f"{message_class.__name__} has no version {version}"
        self.message_class = message_class
        self.version = version
        self.flexible = version in versions.flexible

    def __str__(self) -> str:
        return f"{self.message_class.__name__} v{self.version}"

    def ordinary(self, struct_class: type) -> list[WireField]:
        """The untagged fields, in wire order."""
        return [item for item in self._present(struct_class) if item.wire.tag is None]

    def tagged(self, struct_class: type) -> list[WireField]:
        """The tagged fields, which may be absent, by tag."""
        found = [item for item in self._present(struct_class) if item.wire.tag is not None]
        assert self.flexible or not found, f"{self}: only flexible versions have tags"
        return sorted(found, key=lambda item: item.wire.tag or 0)

    def is_nullable(self, item: WireField) -> bool:
        return self.version in item.wire.nullable

    def _present(self, struct_class: type) -> list[WireField]:
        return [item for item in wire_fields(struct_class) if self.version in item.wire.versions]


class FunctionSource:
    """The source of one function under construction, from its first line to its last."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"def {signature}:"]
        self._indent = 1
        self._names: dict[str, Any] = {}
        self._variable_count = 0

    def __str__(self) -> str:
        return "\n".join([*self._lines, ""])

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Indent the lines written inside by one level."""
        self.line(opening)
        self._indent += 1
        yield
        self._indent -= 1

    def variable(self, stem: str) -> str:
        """A variable name that is unique in the function."""
        self._variable_count += 1
        return f"{stem}{self._variable_count}"

    def refer(self, name: str, value: Any) -> str:
        """Bind `name` to `value` in the function's globals."""
        self._names.setdefault(name, value)
        assert self._names[name] == value, f"{name} is bound to another value already"
        return name

    def struct_method(self, method: str, codes: str) -> str:
        """The name bound to a `struct.Struct` method for these consecutive fields."""
        name = f"{method}_{codes.replace('?', 'bool')}"
        if name not in self._names:
            self._names[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def struct_methods(self, method: str, code: str) -> str:
        """The name bound to a table of `struct.Struct` methods by element count."""
        return self.refer(f"{method}_many_{code}", _REPEATED[method, code])

    def compile(self, title: str) -> Function:
        """Compile the function; tracebacks show its lines under `title`."""
        source, filename = str(self), f"<{title}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        # The source is made from our own classes only; nothing in it came over a network.
        exec(compile(source, filename, "exec"), self._names)  # noqa: S102
        function: Function = self._names["run"]
        return function


class _Repeated(dict[int, Function]):
    """Methods of `struct.Struct` by how often one code repeats.

    Only small counts are cached, so that clients cannot fill the memory with rare ones.
    """

    def __init__(self, method: str, code: str) -> None:
        super().__init__()
        self._method = method
        self._code = code

    def __missing__(self, count: int) -> Function:
        made: Function = getattr(struct.Struct(f">{count}{self._code}"), self._method)
        if count <= _CACHED_COUNT_MAX:
            self[count] = made
        return made


def is_repeatable(kind: Kind) -> bool:
    """True if an array of this kind can be read or written by one `struct` call."""
    return isinstance(kind, Fixed) and kind.code in REPEATABLE_CODES


def reaches(kind: Kind, sought: Kind) -> bool:
    """True if values of `kind` contain `sought` at any depth."""
    match kind:
        case Array():
            return reaches(kind.element, sought)
        case type() as struct_class:
            return any(reaches(item.wire.kind, sought) for item in wire_fields(struct_class))
        case _:
            return kind is sought


_REPEATED: Final = {
    (method, code): _Repeated(method, code)
    for method in ("unpack_from", "pack")
    for code in REPEATABLE_CODES
}
