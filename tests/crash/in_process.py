"""A broker in this process, on files that a test has handed in."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.config import BrokerConfig
from ottla.model import Endpoint
from ottla.storage.files import Files

PATIENCE_S: Final = 60
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Served:
    """Where a broker listens, and where it tells how it is."""

    address: str
    pages: str

    def page(self, name: str) -> tuple[int, str]:
        """Status and text of a page."""
        try:
            with urllib.request.urlopen(f"http://{self.pages}{name}", timeout=PATIENCE_S) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, answer.read().decode()

    def wait_page(self, name: str, status: int) -> None:
        """Return when a page answers with this status."""
        until_s = time.monotonic() + PATIENCE_S
        while (found := self.page(name))[0] != status:
            assert time.monotonic() < until_s, found

    def figure(self, name: str) -> float:
        """A metric without labels."""
        lines = self.page("/metrics")[1].splitlines()
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        return float(line.split()[1])


@contextmanager
def serving(data: Path, files: Files, **settings: str) -> Iterator[Served]:
    """Run a broker on `files`; a defect of it is raised when it ends."""
    raw = {name.replace("_", "."): value for name, value in settings.items()}
    options = ServeOptions(
        data=data, listen=_LOOPBACK, metrics=_LOOPBACK, config=BrokerConfig.parse(raw)
    )
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Served]] = Future()
    over: Future[None] = Future()
    thread = threading.Thread(target=_run, args=(options, files, ready, over))
    thread.start()
    try:
        loop, stopped, served = ready.result(PATIENCE_S)
        try:
            yield served
        finally:
            with suppress(RuntimeError):  # its loop is closed: a defect has ended it already
                loop.call_soon_threadsafe(stopped.set)
            over.result(PATIENCE_S)
    finally:
        thread.join(PATIENCE_S)


def _run(
    options: ServeOptions,
    files: Files,
    ready: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Served]]",
    over: "Future[None]",
) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, files, ready))
    except BaseException as problem:  # noqa: BLE001  # it is raised again in the test
        (over if ready.done() else ready).set_exception(problem)
    else:
        over.set_result(None)


async def _serve(
    options: ServeOptions,
    files: Files,
    ready: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Served]]",
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    broker = await Broker.start(options, Environment(files=files))
    assert broker.metrics_address is not None
    ready.set_result((loop, stopped, Served(str(broker.address), str(broker.metrics_address))))
    waits = [asyncio.ensure_future(broker.wait_failed()), asyncio.ensure_future(stopped.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await broker.stop()
