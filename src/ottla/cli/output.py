"""Standard output and standard error that write everything, or say why they cannot.

Python's own streams lose bytes with PYTHONUNBUFFERED=1: a short write is not continued, so a
reader that has closed a pipe goes unnoticed, and a descriptor that is not blocking, because it is
shared with a program that wants it so, drops what does not fit.
"""

import io
import os
import select
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD: Final = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


class OutputFailed(Exception):
    """Standard output cannot be written: a full disk, a broken device."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(
            f"standard output cannot be written: {os.strerror(problem.errno or 0).lower()}"
        )


class DescriptorWriter(io.RawIOBase):
    """Writes whole buffers to a descriptor that stays open; waits while it is full."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: "ReadableBuffer", /) -> int:
        left = memoryview(data).cast("B")
        size_bytes = len(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                _wait_writable(self._descriptor)
            except BrokenPipeError:
                raise
            except OSError as problem:
                raise OutputFailed(problem) from None
        return size_bytes


def install_streams() -> None:
    """Replace the process's standard streams; one that is closed becomes /dev/null."""
    for descriptor, (name, mode) in enumerate(_STANDARD):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, mode)
            if opened != descriptor:  # a lower one was free
                os.dup2(opened, descriptor)
                os.close(opened)
            if name == "stdin":
                sys.stdin = os.fdopen(descriptor, closefd=False)
    sys.stdout = _text_stream(sys.stdout, 1)
    sys.stderr = _text_stream(sys.stderr, 2)


def _text_stream(replaced: TextIO | None, descriptor: int) -> TextIO:
    encoding = "utf-8" if replaced is None else replaced.encoding
    errors = "strict" if replaced is None else replaced.errors
    raw = DescriptorWriter(descriptor)
    is_prompt = descriptor == 2 or raw.isatty() or bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=is_prompt
    )


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
