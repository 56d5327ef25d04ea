"""Lines from and bytes to files and pipes, without blocking the event loop."""

import asyncio
import os
import select
from typing import Final

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

    async def write(self, data: bytes) -> None:
        """Write all of `data`; after a cancellation an unknown part of it is written."""
        left = memoryview(data)
        while left:
            if not self._is_writable():
                await self._wait_writable()
            left = left[os.write(self._descriptor, left[:_PIPE_WRITE_BYTES]) :]

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
