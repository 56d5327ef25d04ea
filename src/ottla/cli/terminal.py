"""What people and scripts see: one line for an error, tables for eyes, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from ottla.clock import Clock

_PROGRESS_INTERVAL_S: Final = 0.5
_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def complain(text: str) -> None:
    """Say on standard error, in one line, what went wrong."""
    sys.stdout.flush()
    sys.stderr.write(f"ottla: {one_line(text)}\n")


def note(text: str) -> None:
    """Tell people how it went, out of the way of the output."""
    sys.stderr.write(f"{one_line(text)}\n")


def one_line(text: str) -> str:
    """Text as one line; what comes from elsewhere must not steer the terminal."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


def write_json(value: Any) -> None:
    """One value on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def write_lines(lines: Sequence[str]) -> None:
    """Plain lines on standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn when a person looks at it, aligned words when a program does."""
    if sys.stdout.isatty():
        from ottla.cli.drawn_table import draw  # noqa: PLC0415  rich is slow to import

        draw(columns, rows)
    else:
        write_lines(align([columns, *rows]))


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_size(size_bytes: int) -> str:
    """A number of bytes as people read it."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in _SIZE_UNITS:
        size /= 1024
        if size < 1024 or unit == _SIZE_UNITS[-1]:
            break
    return f"{size:.1f} {unit}"


class Progress:
    """A line on standard error that is rewritten in place, where a person can see it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._visible = sys.stderr.isatty()
        self._next_s = clock.monotonic_s() + _PROGRESS_INTERVAL_S
        self._shown = False

    def show(self, text: str) -> None:
        """Say how far it is, at most twice a second."""
        if self._visible and self._clock.monotonic_s() >= self._next_s:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._next_s = self._clock.monotonic_s() + _PROGRESS_INTERVAL_S
            self._shown = True

    def clear(self) -> None:
        """Take the line away again."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
