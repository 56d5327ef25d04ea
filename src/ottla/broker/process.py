"""The process of a broker: signals, exit codes, garbage collection, the line that says ready."""

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import Final, NoReturn

from ottla.broker.app import Broker, ServeOptions
from ottla.broker.defects import is_defect, summary
from ottla.broker.descriptors import raise_descriptor_limit
from ottla.broker.environment import Environment
from ottla.broker.stores import environment_of
from ottla.cluster.store import StoreUnavailable
from ottla.errors import UsageRefused
from ottla.model import Endpoint

log = logging.getLogger("ottla.broker")

DEFECT_STATUS: Final = 1  # of a process that a defect has ended
_COLLECT_S: Final = 30.0
_COLLECT_ALL_S: Final = 600.0
_YOUNG: Final = 1  # the generations of objects that no collection has seen yet


def serve(options: ServeOptions) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the exit code of the process."""
    if not __debug__:
        raise UsageRefused("run without -O: the assertions are part of the broker")
    import uvloop  # noqa: PLC0415  # only a serving process needs it

    raise_descriptor_limit()
    environment = environment_of(options.store, options.store_access)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, environment))


async def _serve(options: ServeOptions, environment: Environment) -> int:
    try:
        await _serve_until_stopped(options, environment)
    except Exception as problem:
        if is_defect(problem):
            _exit_by(problem)
        raise
    return 0


def _exit_by(problem: BaseException) -> NoReturn:
    """End the process by a defect, without waiting for threads: one may be stuck at the disk."""
    log.critical("the broker was stopped by a defect", extra=summary(problem))
    sys.stdout.flush()
    os._exit(DEFECT_STATUS)


async def _serve_until_stopped(options: ServeOptions, environment: Environment) -> None:
    gc.disable()  # objects that a start makes stay: `_collect_garbage` never searches them
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    if options.ends_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _note_stdin, stopped)
    try:
        broker = await Broker.start(options, environment)
    except StoreUnavailable as problem:
        raise UsageRefused(
            f"the coordination store cannot be used: {problem}; start it, or check --store"
        ) from None
    collector = loop.create_task(_collect_garbage())
    broker.defects.watch(collector)
    sys.stdout.write(f"ottla ready on {broker.address}\n")
    if options.hints:
        sys.stdout.write(_hints(broker.advertised))
    sys.stdout.flush()
    waits = [loop.create_task(stopped.wait()), loop.create_task(broker.wait_failed())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in (*waits, collector):
        task.cancel()
    log.info("broker stopping", extra={"address": broker.address})
    await broker.stop()


def _note_stdin(stopped: asyncio.Event) -> None:
    """Nothing is ever written there: it has ended."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    stopped.set()


async def _collect_garbage() -> None:
    """Collect cycles at fixed times: the collector's own timing shows in the p99.9.

    Young objects every time; all objects, which stops the loop for 0.1 s per million of them, so
    seldom that it takes a ten thousandth of the time. Objects that a start has made are not
    searched at all: with 10,000 partitions 425 of them were garbage.
    """
    gc.freeze()
    gc.disable()
    loop = asyncio.get_running_loop()
    whole_due_s = loop.time() + _COLLECT_ALL_S
    while True:
        await asyncio.sleep(_COLLECT_S)
        began_s = loop.time()
        if began_s < whole_due_s:
            gc.collect(_YOUNG)
            continue
        gc.collect()
        ended_s = loop.time()
        whole_due_s = ended_s + max(_COLLECT_ALL_S, 10_000 * (ended_s - began_s))


def _hints(address: Endpoint) -> str:
    return f"""
Try it from another terminal:

  echo 'hello, Ottla' | .venv/bin/ottla --broker {address} produce greetings
  .venv/bin/ottla --broker {address} consume greetings --from beginning
  .venv/bin/ottla --broker {address} topic describe greetings

Any Kafka client works too: bootstrap.servers={address}. Ctrl-C stops the broker.
"""
