"""A real broker inside a test process.

    with ottla.testing.broker() as address:
        producer = confluent_kafka.Producer({"bootstrap.servers": address})

It listens on a free loopback port, keeps its data in a temporary directory, and leaves nothing
behind. With pytest, ask for the fixture `ottla_broker` instead: it comes with the package.
"""

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.config import BrokerConfig
from ottla.model import Endpoint

_START_TIMEOUT_S: Final = 60
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)


@contextmanager
def broker(settings: Mapping[str, str] | None = None, *, data: Path | None = None) -> Iterator[str]:
    """Run a broker; yields its address as HOST:PORT.

    `settings` are broker settings by their dotted names, as `ottla config list` shows them. With
    `data` the directory is kept, so that a test can stop a broker and start it again.
    """
    config = BrokerConfig.parse(settings or {})
    if data is not None:
        with _running(ServeOptions(data=data, listen=_LOOPBACK, config=config)) as address:
            yield address
        return
    with (
        tempfile.TemporaryDirectory(prefix="ottla-") as directory,
        _running(ServeOptions(data=Path(directory), listen=_LOOPBACK, config=config)) as address,
    ):
        yield address


@contextmanager
def _running(options: ServeOptions) -> Iterator[str]:
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Endpoint]] = Future()
    over: Future[None] = Future()
    thread = threading.Thread(target=_run, args=(options, ready, over), name="ottla-broker")
    thread.start()
    try:
        loop, stopped, address = ready.result(_START_TIMEOUT_S)
        yield str(address)
        loop.call_soon_threadsafe(stopped.set)
        over.result()
    finally:
        if ready.done() and ready.exception() is None and not over.done():
            loop, stopped, _ = ready.result()
            loop.call_soon_threadsafe(stopped.set)
        thread.join()


def _run(
    options: ServeOptions,
    ready: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Endpoint]]",
    over: "Future[None]",
) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, ready))
    except BaseException as problem:  # noqa: BLE001  # it is raised again in the test
        (over if ready.done() else ready).set_exception(problem)
    else:
        over.set_result(None)


async def _serve(
    options: ServeOptions,
    ready: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Endpoint]]",
) -> None:
    """A defect of the broker fails the test that is using it."""
    stopped = asyncio.Event()
    running = await Broker.start(options, Environment())
    ready.set_result((asyncio.get_running_loop(), stopped, running.address))
    failed = asyncio.ensure_future(running.wait_failed())
    told = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([failed, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    await running.stop()
    if failed.done():
        failed.result()
    failed.cancel()
