"""`ottla serve --brokers K`: several brokers of one machine, started and stopped together.

Each is a process of its own, with the next port and a directory of its own below `--data`, and all
share the store that is there too. A process that ends is started again; a stop ends one after the
other, so that each can hand over what it leads.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.broker.app import ServeOptions
from ottla.broker.meta_properties import IDENTITY_FILE
from ottla.errors import UsageRefused
from ottla.model import Endpoint

log = logging.getLogger("ottla.serve")

READY: Final = "ottla ready on "
_COMMAND: Final = (sys.executable, "-m", "ottla", "serve")
_PAUSE_MIN_S: Final = 0.5  # before a process that ended is started again
_PAUSE_MAX_S: Final = 30.0
_SETTLED_S: Final = 60.0  # a process that ran for so long is started again at once
_STOP_S: Final = 60.0  # for one process to stop, before it is killed
_REFUSED: Final = 2  # the status of a broker that cannot start as it is


@dataclass(frozen=True, slots=True)
class Child:
    """A broker to start: its id, address and arguments."""

    node_id: int
    listen: Endpoint
    arguments: tuple[str, ...]


def children(options: ServeOptions, count: int, passed_on: Sequence[str]) -> list[Child]:
    """The brokers to start: ports, ids and metrics ports are counted up from the given ones.

    `passed_on` are the arguments that all of them get.
    """
    if options.listen.port == 0:
        raise UsageRefused("--brokers needs a port: those after it are counted up from it")
    if (options.data / IDENTITY_FILE).exists():
        raise UsageRefused(
            f"{options.data} holds the data of one broker: start it without --brokers, or give"
            " several brokers another directory with --data DIR"
        )
    store = options.store or f"sqlite:{options.data / 'cluster.sqlite'}"
    made = []
    for index in range(count):
        listen = _next(options.listen, index)
        node_id = options.node_id + index
        own = [
            *("--data", str(options.data / f"broker{node_id}"), "--listen", str(listen)),
            *("--node-id", str(node_id), "--store", store, "--ends-with-stdin"),
        ]
        if options.advertise is not None:
            own += ["--advertise", str(_next(options.advertise, index))]
        if options.metrics is not None:
            own += ["--metrics", str(_next(options.metrics, index))]
        made.append(Child(node_id, listen, (*own, *passed_on)))
    return made


def _next(address: Endpoint, index: int) -> Endpoint:
    port = address.port + index if address.port else 0
    if port > 65535:
        raise UsageRefused(f"{address} has too few ports after it for so many brokers")
    return Endpoint(address.host, port)


async def supervise(brokers: Sequence[Child]) -> int:
    """Run the brokers until SIGTERM or SIGINT; returns the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    supervisors = [_Supervisor(child, stopping) for child in brokers]
    tasks = [loop.create_task(one.run()) for one in supervisors]
    ready = loop.create_task(_say_ready(supervisors))
    try:
        refused = await _wait_refused(tasks, stopping)
    finally:
        stopping.set()
        ready.cancel()
        for one in supervisors:  # the next one stops when this one has handed over
            await one.stop()
        await asyncio.wait(tasks)
    return _REFUSED if refused else 0


async def _wait_refused(tasks: "Sequence[asyncio.Task[None]]", stopping: asyncio.Event) -> bool:
    """True if a broker cannot start at all; False when all are to be stopped."""
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    return any(task.done() for task in tasks)


async def _say_ready(supervisors: "Sequence[_Supervisor]") -> None:
    for one in supervisors:
        await one.is_ready.wait()
    addresses = ",".join(str(one.child.listen) for one in supervisors)
    sys.stdout.write(f"{READY}{addresses}\n")
    sys.stdout.flush()


class _Supervisor:
    """Keeps one broker running. Its task ends only if the broker is refused at its first start."""

    def __init__(self, child: Child, stopping: asyncio.Event) -> None:
        self.child = child
        self.is_ready = asyncio.Event()
        self._stopping = stopping
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_MIN_S
        while not self._stopping.is_set():
            begun_s = loop.time()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            if status == _REFUSED and not self.is_ready.is_set():
                return  # it has said why on standard error
            if loop.time() - begun_s > _SETTLED_S:
                pause_s = _PAUSE_MIN_S
            extra = {"broker": self.child.node_id, "status": status, "pause_s": pause_s}
            log.error("broker ended, and is started again", extra=extra)
            await _wait_for(self._stopping, pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def stop(self) -> None:
        """End the process, and wait for it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.error("broker killed: it did not stop", extra={"broker": self.child.node_id})
            process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        """Run the process to its end; returns its status."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(*_COMMAND, *self.child.arguments),
            stdin=asyncio.subprocess.PIPE,  # open for as long as this process is there
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process: it stops them in order
            env=os.environ,
        )
        if self._stopping.is_set():  # meanwhile
            await self.stop()
        assert process.stdout is not None
        async for line in process.stdout:
            if line.decode(errors="replace").startswith(READY):
                self.is_ready.set()
        return await process.wait()


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
