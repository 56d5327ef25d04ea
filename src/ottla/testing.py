"""A real broker inside a test process.

    with ottla.testing.broker() as address:
        producer = confluent_kafka.Producer({"bootstrap.servers": address})

It listens on a free loopback port and keeps its data in a temporary directory, which is removed.
With pytest, use the fixture `ottla_broker` instead: it comes with the package.
"""

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.config import BrokerConfig
from ottla.model import Endpoint

_TIMEOUT_S: Final = 60  # of a start or a stop; only a defect takes longer
_TEST_SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}  # no test has members to wait for
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)


@contextmanager
def broker(settings: Mapping[str, str] | None = None, *, data: Path | None = None) -> Iterator[str]:
    """Run a broker; yields its address as HOST:PORT.

    `settings` are broker settings by their dotted names, as `ottla config list` shows them. With
    `data` the directory is kept, so that a test can stop a broker and start it again. A defect of
    the broker is raised when the block ends.
    """
    config = BrokerConfig.parse({**_TEST_SETTINGS, **(settings or {})})
    if data is not None:
        options = ServeOptions(data=data, listen=_LOOPBACK, config=config)
        with _running(options, Environment()) as address:
            yield address
        return
    with tempfile.TemporaryDirectory(prefix="ottla-") as directory:
        options = ServeOptions(data=Path(directory), listen=_LOOPBACK, config=config)
        # A directory that goes with the broker need not outlive a power cut.
        with _running(options, Environment().without_syncs()) as address:
            yield address


class _Started(NamedTuple):
    """A started broker, as seen by the test's thread."""

    address: Endpoint
    loop: asyncio.AbstractEventLoop
    stop_requested: asyncio.Event

    def request_stop(self) -> None:
        with suppress(RuntimeError):  # its loop is closed: a defect has stopped it already
            self.loop.call_soon_threadsafe(self.stop_requested.set)


@contextmanager
def _running(options: ServeOptions, environment: Environment) -> Iterator[str]:
    start: Future[_Started] = Future()
    end: Future[None] = Future()
    # A daemon: a broker that hangs must not keep the test process from ending.
    thread = threading.Thread(
        target=_run, args=(options, environment, start, end), name="ottla-broker", daemon=True
    )
    thread.start()
    try:
        started = start.result(_TIMEOUT_S)
        try:
            yield str(started.address)
        finally:
            started.request_stop()
            end.result(_TIMEOUT_S)
    finally:
        thread.join(_TIMEOUT_S)


def _run(
    options: ServeOptions,
    environment: Environment,
    start: "Future[_Started]",
    end: "Future[None]",
) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, environment, start))
    except BaseException as problem:  # noqa: BLE001  # it is raised again in the test
        (end if start.done() else start).set_exception(problem)
    else:
        end.set_result(None)


async def _serve(
    options: ServeOptions, environment: Environment, start: "Future[_Started]"
) -> None:
    """Serve until the test ends; raises the defect that stopped the broker before."""
    stop_requested = asyncio.Event()
    running = await Broker.start(options, environment)
    start.set_result(_Started(running.address, asyncio.get_running_loop(), stop_requested))
    waits = [
        asyncio.ensure_future(running.wait_failed()),
        asyncio.ensure_future(stop_requested.wait()),
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await running.stop()
