"""Lines from a file or a pipe, as many as are there, without ever blocking the event loop."""

import asyncio
import os
import select
from typing import Final

from ottla.errors import UsageRefused

CHUNK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 256 << 20


class LineSource:
    """Cuts a descriptor's bytes into lines; only "\\n" ends a line, and it is taken off.

    Belongs to whoever reads from it. The descriptor stays open and stays blocking: it may be a
    terminal that other programs share.
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
                raise UsageRefused(f"a line is longer than {LINE_BYTES_MAX} bytes")
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
            return  # an ordinary file: it is always readable, and loops do not watch such
        try:
            await readable
        finally:
            loop.remove_reader(self._descriptor)

    def _read_available(self) -> bytes:
        """What can be read now, up to a chunk; a pipe gives it in small pieces."""
        parts = [os.read(self._descriptor, CHUNK_BYTES)]
        size_bytes = len(parts[0])
        while parts[-1] and size_bytes < CHUNK_BYTES and self._is_readable():
            parts.append(os.read(self._descriptor, CHUNK_BYTES - size_bytes))
            size_bytes += len(parts[-1])
        return b"".join(parts)

    def _is_readable(self) -> bool:
        readable, _, _ = select.select([self._descriptor], [], [], 0)
        return bool(readable)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
