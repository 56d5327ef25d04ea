"""Messages filled by chance, for any class and version: edges first, then anything."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.schema import Array, Fixed, Kind, Sized, boolean, string, uuid, wire_fields

_TEXTS = ("", "orders", "Größe", "消息", "𝄞", "x" * 126, "x" * 127, "x" * 300)
_FLOATS = (0.0, -1.5, 1e300, math.pi)


class RandomMessages:
    """Fills messages from a seeded source of chance, so that a failure comes back."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)

    def message(self, message_class: type[Any], version: int) -> Any:
        """A message whose fields of this version hold random values; the others their default."""
        return message_class(
            **{
                item.name: self._field(item.name, item.wire.kind, version, item.wire.nullable)
                for item in wire_fields(message_class)
                if version in item.wire.versions and self._keep(item.wire.tag)
            }
        )

    def _keep(self, tag: int | None) -> bool:
        return tag is None or self.chance.random() < 0.7

    def _field(self, name: str, kind: Kind, version: int, nullable: range) -> Any:
        if version in nullable and self.chance.random() < 0.2:
            return None
        return self._value(name, kind, version)

    def _value(self, name: str, kind: Kind, version: int) -> Any:
        match kind:
            case Fixed():
                return self._fixed(name, kind)
            case Sized():
                return self._sized(kind)
            case Array():
                count = self.chance.choice((0, 1, 1, 2, 3))
                return [self._value(name, kind.element, version) for _ in range(count)]
            case type():
                return self.message(kind, version)

    def _fixed(self, name: str, kind: Fixed) -> Any:
        if kind is boolean:
            return self.chance.random() < 0.5
        if kind is uuid:
            return self.chance.choice((bytes(16), self.chance.randbytes(16)))
        if kind.code == "d":
            return self.chance.choice(_FLOATS)
        if name.endswith("error_code"):  # an oracle knows these as names
            return int(self.chance.choice(tuple(ErrorCode)))
        if name.endswith("_ms") or "timestamp" in name:  # an oracle knows these as dates
            return self.chance.randrange(2 ** min(8 * kind.size_bytes - 1, 41))
        return self._integer(kind)

    def _integer(self, kind: Fixed) -> int:
        bits = 8 * kind.size_bytes
        low, high = (
            (0, 2**bits - 1) if kind.code == "H" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        pick: Callable[[], int] = self.chance.choice(
            (
                lambda: low,
                lambda: high,
                lambda: 0,
                lambda: 1,
                lambda: self.chance.randint(low, high),
            )
        )
        return pick()

    def _sized(self, kind: Sized) -> str | bytes:
        if kind is string:
            return self.chance.choice(_TEXTS)
        return self.chance.randbytes(self.chance.choice((0, 1, 61, 126, 127, 200)))
