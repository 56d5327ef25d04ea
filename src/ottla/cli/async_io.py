"""Lines from and bytes to files and pipes, without blocking the event loop."""

import asyncio
import os
import select
import stat
from collections.abc import Coroutine
from typing import Any, Final

from ottla.cli.output import OutputFailed
from ottla.errors import UsageRefused

CHUNK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 256 << 20
_PIPE_WRITE_BYTES: Final = 4096  # POSIX' PIPE_BUF: a writable pipe takes this much at once


class AsyncLines:
    """Reads lines from a descriptor; only "\\n" ends a line, and it is removed.

    Owned by one reader. The descriptor stays open and blocking: it may be a terminal shared with
    other programs.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._ended = False

    async def next_lines(self) -> list[bytes]:
        """Wait for at least one line, then return all that have arrived; empty at the end."""
        while not self._ended:
            await self._wait_readable()
            data = self._read_available()
            if not data:
                self._ended = True
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LINE_BYTES_MAX:
                raise UsageRefused(f"a line of the input is longer than {LINE_BYTES_MAX} bytes")
            if lines:
                return lines
        last, self._rest = self._rest, b""
        return [last] if last else []

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _resolve, readable)
        except PermissionError:
            return  # a regular file: always readable, and not supported by event loops
        try:
            await readable
        finally:
            loop.remove_reader(self._descriptor)

    def _read_available(self) -> bytes:
        """The bytes that can be read now, up to a chunk; a pipe returns small pieces."""
        parts = [os.read(self._descriptor, CHUNK_BYTES)]
        size_bytes = len(parts[0])
        while parts[-1] and size_bytes < CHUNK_BYTES and self._is_readable():
            parts.append(os.read(self._descriptor, CHUNK_BYTES - size_bytes))
            size_bytes += len(parts[-1])
        return b"".join(parts)

    def _is_readable(self) -> bool:
        return _is_ready(self._descriptor, select.POLLIN)


class AsyncOutput:
    """Writes to a descriptor at the pace of its reader; owned by one writer.

    The descriptor stays open and blocking: it may be a terminal shared with other programs.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        # A file takes what it gets; others block, for as long as they are full.
        self._write_bytes = CHUNK_BYTES if stat.S_ISREG(mode) else _PIPE_WRITE_BYTES

    async def write(self, data: bytes) -> None:
        """Write all of `data`; after a cancellation an unknown part of it is written.

        `BrokenPipeError` once the reader has gone, `OutputFailed` if the device fails.
        """
        left = memoryview(data)
        while left:
            if not self._is_writable():
                await self._wait_writable()
            try:
                left = left[os.write(self._descriptor, left[: self._write_bytes]) :]
            except BlockingIOError:
                await self._wait_writable()
            except BrokenPipeError:
                raise
            except OSError as problem:
                raise OutputFailed(problem) from None

    async def run_while_open(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end; once the reader of a pipe has gone, cancel it: `BrokenPipeError`.

        A command that waits for records would learn of it with its next write, perhaps never.
        """
        working = asyncio.create_task(work)
        gone = asyncio.create_task(self.wait_closed())
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise BrokenPipeError
            working.result()
        finally:
            working.cancel()
            gone.cancel()
            await asyncio.wait([working, gone])

    async def wait_closed(self) -> None:
        """Return once the reader of the pipe has closed it; never for anything but a pipe."""
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        if not self._is_pipe:
            await closed
        # The end that writes has nothing to read: the loop reports it when the other end closes.
        loop.add_reader(self._descriptor, _resolve, closed)
        try:
            await closed
        finally:
            loop.remove_reader(self._descriptor)

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._descriptor, _resolve, writable)
        try:
            await writable
        finally:
            loop.remove_writer(self._descriptor)

    def _is_writable(self) -> bool:
        return _is_ready(self._descriptor, select.POLLOUT)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _is_ready(descriptor: int, event: int) -> bool:
    """Without waiting. `select.select` would refuse a descriptor of 1,024 or more."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(0))
