"""Bytes to a file or a pipe, without ever blocking the event loop."""

import asyncio
import os
import select
from typing import Final

_PIECE_BYTES: Final = 4096  # POSIX' PIPE_BUF: a pipe that can be written to takes so much at once


class ByteSink:
    """Writes to a descriptor at the pace of whoever reads from it.

    Belongs to whoever writes. The descriptor stays open and stays blocking: it may be a terminal
    that other programs share.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, data: bytes) -> None:
        """Return when all of it is written; who gives up before does not know how much was."""
        left = memoryview(data)
        while left:
            if not self._is_writable():
                await self._wait_writable()
            left = left[os.write(self._descriptor, left[:_PIECE_BYTES]) :]

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._descriptor, _resolve, writable)
        try:
            await writable
        finally:
            loop.remove_writer(self._descriptor)

    def _is_writable(self) -> bool:
        _, writable, _ = select.select([], [self._descriptor], [], 0)
        return bool(writable)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
