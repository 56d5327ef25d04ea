"""The metrics endpoint of a pipeline, served by its own thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.broker.metrics import MetricsPages
from ottla.model import Endpoint
from ottla.telemetry import Collect

_TIMEOUT_S: Final = 10


@contextmanager
def metrics_pages(endpoint: Endpoint, collect: Collect) -> Iterator[Endpoint]:
    """Serve /metrics, /healthz and /readyz inside the block; yields the address."""
    loop = asyncio.new_event_loop()
    pages = MetricsPages(collect, obstacle=lambda: None, watch=lambda task: None)
    thread = threading.Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(pages.listen(endpoint), loop).result(_TIMEOUT_S)
    finally:
        asyncio.run_coroutine_threadsafe(pages.close(), loop).result(_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_TIMEOUT_S)
        loop.close()
