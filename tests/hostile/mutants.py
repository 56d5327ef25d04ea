"""Requests gone wrong: recorded and random ones, cut, flipped, spliced and mislabelled."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from fakes.layouts import Layout
from fakes.random_messages import RandomMessages
from hostile.wire import framed, request_bytes

_GOLDEN: Final = Path(__file__).parents[1] / "golden"
_LENGTH_BYTES: Final = 4
_VARIANTS: Final = 32  # random requests of each kind
_HEADER_BYTES: Final = 8  # key, version, correlation id
_EDGES: Final = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x10\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
)


def recorded_frames() -> list[bytes]:
    """What real clients sent, with its length."""
    return [framed(bytes.fromhex(path.read_text())) for path in sorted(_GOLDEN.glob("*.hex"))]


class Mutants:
    """An endless source of broken requests that depends on nothing but its seed."""

    def __init__(self, seed: int, layouts: Sequence[Layout], recorded: Sequence[bytes]) -> None:
        self._chance = Random(seed)
        self._messages = RandomMessages(seed)
        self._layouts = layouts
        self._recorded = recorded
        self._written: dict[Layout, list[bytes]] = {}

    def next(self) -> bytes:
        """A whole frame; now and then its length is a lie."""
        frame = bytearray(self._sane())
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            self._mutate(frame)
        if self._chance.random() < 0.95:
            frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(4, "big")
        return bytes(frame)

    def _sane(self) -> bytes:
        if self._chance.random() < 0.5:
            return self._chance.choice(self._recorded)
        return self._random(self._chance.choice(self._layouts))

    def _random(self, layout: Layout) -> bytes:
        """A request with random content; it is the mutations that have to be many, so these few
        are used again and again."""
        written = self._written.setdefault(layout, [])
        if len(written) < _VARIANTS:
            written.append(request_bytes(self._messages.message(*layout), layout.version))
            return written[-1]
        return self._chance.choice(written)

    def _mutate(self, frame: bytearray) -> None:
        mutate = self._chance.choice(
            (self._flip, self._flip, self._cut, self._splice, self._edge, self._remove, self._label)
        )
        mutate(frame)
        if len(frame) < _LENGTH_BYTES + _HEADER_BYTES:
            frame += bytes(_LENGTH_BYTES + _HEADER_BYTES - len(frame))

    def _place(self, frame: bytearray) -> int:
        """Mostly in the body: a wrong key or version is refused before anything interesting."""
        first = 0 if self._chance.random() < 0.02 else _LENGTH_BYTES + _HEADER_BYTES
        return self._chance.randrange(min(first, len(frame) - 1), len(frame))

    def _flip(self, frame: bytearray) -> None:
        frame[self._place(frame)] ^= 1 << self._chance.randrange(8)

    def _cut(self, frame: bytearray) -> None:
        del frame[self._place(frame) :]

    def _remove(self, frame: bytearray) -> None:
        place = self._place(frame)
        del frame[place : place + self._chance.choice((1, 2, 4, 8))]

    def _edge(self, frame: bytearray) -> None:
        """Write a number that is the largest, the smallest or just over."""
        place, edge = self._place(frame), self._chance.choice(_EDGES)
        frame[place : place + len(edge)] = edge

    def _splice(self, frame: bytearray) -> None:
        """Go on in the middle of another request."""
        other = self._sane()
        frame[self._place(frame) :] = other[self._chance.randrange(len(other)) :]

    def _label(self, frame: bytearray) -> None:
        """Call it another served request, or another version of it."""
        label = self._random(self._chance.choice(self._layouts))[4:8]
        frame[_LENGTH_BYTES : _LENGTH_BYTES + len(label)] = label
