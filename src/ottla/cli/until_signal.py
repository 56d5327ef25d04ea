"""Work that ends by itself, or in good order after a signal."""

import asyncio
import signal
from typing import Final, Protocol

_GRACE_S: Final = 2.0  # how long a pending write may take after a signal to stop
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Work(Protocol):
    """A loop that ends soon after `stop_requested` is set."""

    stop_requested: asyncio.Event

    async def run(self) -> None: ...


async def run_until_signal(work: Work) -> None:
    """Run until done, SIGINT or SIGTERM; a pending write is finished if its reader reads."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        work.stop_requested.set()
        for signum in _SIGNALS:  # a second one ends the process at once
            loop.remove_signal_handler(signum)

    for signum in _SIGNALS:
        loop.add_signal_handler(signum, stop)
    running = asyncio.create_task(work.run())
    stopping = asyncio.create_task(work.stop_requested.wait())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait([running], timeout=_GRACE_S)
        if running.done():
            running.result()
    finally:
        running.cancel()
        stopping.cancel()
        await asyncio.wait([running, stopping])
