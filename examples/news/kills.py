"""The example while its broker and its driver are killed, and a check that nothing was lost.

The driver (crawler, readers, Spark) is a process of its own, so that it can be killed as well. It
runs until the broker was killed and is back, and is then killed itself, with its Java. A second
driver goes on from its checkpoints, finishes what there is, and compares every step.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from examples.news.run import (
    INTERRUPTED,
    PATIENCE_S,
    Broker,
    BrokerEnded,
    Run,
    own_terminal,
    say,
    start_broker,
)

BATCH_WAIT_S: Final = 90.0  # for a batch before each kill; there is none if all news are old
DOWN_S: Final = 2.0


def run_with_kills(asked: Run) -> int:
    """All of it; the exit status of the driver that finishes and checks."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    try:
        with own_terminal():
            return _run(asked)
    except BrokerEnded as ended:
        return ended.status or 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(asked: Run) -> int:
    broker, address = start_broker(asked)
    asked.home.mkdir(parents=True, exist_ok=True)
    asked = replace(asked, listen=address)  # the port that was chosen, also for the next broker
    try:
        with running_driver(asked, address) as driver:
            driver.wait_batch()
            broker = restart(asked, broker)
            driver.wait_batch()
            say("kill       the driver: crawler, readers, Spark and its Java")
            driver.kill()
        with running_driver(asked, address, "--once", "--check") as driver:
            status = driver.process.wait()
        if status == 0:
            say("done: broker killed 1 time, driver killed 1 time; lost 0, doubled 0")
        else:
            say(f"news       not all is right: see above, and {asked.client_log}")
        return status
    finally:
        broker.terminate()
        broker.wait(PATIENCE_S)


def restart(asked: Run, broker: Broker) -> Broker:
    """Kill the broker as a power button would, and start one on the same directory and port."""
    say("kill       the broker")
    broker.kill()
    broker.wait(PATIENCE_S)
    threading.Event().wait(DOWN_S)  # clients notice
    return start_broker(asked)[0]


class Driver:
    """Owns a process of this example that uses a broker which runs already."""

    def __init__(self, asked: Run, address: str, *more: str) -> None:
        words = ["--data", str(asked.data), "--broker", address, *more]
        words += [word for source in asked.sources for word in ("--feed", source)]
        with asked.client_log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.news", *words],
                stdout=subprocess.PIPE,
                stderr=log,  # clients tell of every attempt to reach a broker that is away
                text=True,
                start_new_session=True,  # a group, to be killed with its Java
            )
        self._batch = threading.Semaphore(0)
        self._reader = threading.Thread(target=self._say)
        self._reader.start()

    def wait_batch(self) -> None:
        """Return after the next batch, or when none comes; raises if the driver has ended."""
        self._batch.acquire(timeout=BATCH_WAIT_S)
        if self.process.poll() is not None:
            raise BrokerEnded(self.process.returncode)

    def kill(self) -> None:
        """Kill it and all that it has started, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _say(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            say(line.rstrip())
            if " batch " in line:
                self._batch.release()
        self._batch.release()  # none will come any more


@contextlib.contextmanager
def running_driver(asked: Run, address: str, *more: str) -> Iterator[Driver]:
    driver = Driver(asked, address, *more)
    with contextlib.closing(driver):
        yield driver
