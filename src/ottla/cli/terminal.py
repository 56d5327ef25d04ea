"""Output of commands: one line for an error, tables for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ottla.cli.output import OutputFailed
from ottla.clock import Clock

_PROGRESS_INTERVAL_S: Final = 0.5
_WIDTH_MIN: Final = 40
_WIDTH_MAX: Final = 100
_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def print_error(text: str) -> None:
    """Print an error as one line on standard error."""
    sys.stdout.flush()
    _write_error(f"ottla: {one_line(text)}\n")


def print_note(text: str) -> None:
    """Print a note as one line on standard error, apart from the output."""
    _write_error(f"{one_line(text)}\n")


def _write_error(line: str) -> None:
    with suppress(BrokenPipeError, OutputFailed):  # without a reader there is no message
        sys.stderr.write(line)


def one_line(text: str) -> str:
    """Text as one line, without control characters that could affect the terminal."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 record, 2 records."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def write_json(value: Any) -> None:
    """Write a value as a line of JSON to standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def write_lines(lines: Sequence[str]) -> None:
    """Plain lines on standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def width() -> int:
    """The columns for text: the terminal's, but 40 to 100; 100 if it is no terminal."""
    if not sys.stdout.isatty():
        return _WIDTH_MAX
    return max(_WIDTH_MIN, min(_WIDTH_MAX, os.get_terminal_size(sys.stdout.fileno()).columns))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: with rich on a terminal, else aligned plain text."""
    if sys.stdout.isatty():
        from ottla.cli.rich_table import print_rich_table  # noqa: PLC0415  rich is slow to import

        print_rich_table(columns, rows)
    else:
        write_lines(align([columns, *rows]))


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_size(size_bytes: int) -> str:
    """A number of bytes with a binary unit."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in _SIZE_UNITS:
        size /= 1024
        if size < 1024 or unit == _SIZE_UNITS[-1]:
            break
    return f"{size:.1f} {unit}"


class Progress:
    """A progress line on standard error, rewritten in place; only on a terminal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._visible = sys.stderr.isatty()
        self._next_s = clock.monotonic_s() + _PROGRESS_INTERVAL_S
        self._shown = False

    def show(self, text: str) -> None:
        """Show the progress, at most twice a second."""
        if self._visible and self._clock.monotonic_s() >= self._next_s:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._next_s = self._clock.monotonic_s() + _PROGRESS_INTERVAL_S
            self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
