"""A broker in a process of its own that may be killed at any moment and started again."""

import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final

COMMAND: Final = [sys.executable, "-m", "ottla"]
READY: Final = "ottla ready on "
PATIENCE_S: Final = 60
_SHOWN_CHARS: Final = 10_000
_PORTS: Final = range(20_000, 30_000)  # below those that the kernel hands out by itself


class BrokerProcess:
    """One data directory on one port, and whatever process serves it at the moment.

    The port is chosen once and outside of the ephemeral range: a client that reconnects while no
    broker listens could otherwise be given that very port as its own, and keep it.
    """

    def __init__(self, data: Path, *arguments: str, log_file: Path) -> None:
        self.data = data
        self.address = f"127.0.0.1:{free_port()}"
        self._log_file = log_file
        self.arguments = arguments
        self.command = COMMAND  # another program may take the place of `ottla`
        self._process: subprocess.Popen[str] | None = None

    def spawn(self) -> None:
        """Start the process, without waiting for it to be ready."""
        assert self._process is None, "one broker per directory"
        with self._log_file.open("a") as log:
            self._process = subprocess.Popen(
                [
                    *self.command,
                    *("serve", "--data", str(self.data), "--listen", self.address),
                    *self.arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), f"not ready in {PATIENCE_S} s: {self.said()}"
        line = self.read_line()
        assert line == f"{READY}{self.address}\n", self.said()

    def read_line(self) -> str:
        """The next line of standard output."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process as `kill -9` does; it gets no chance to do anything more."""
        assert self._process is not None
        self._process.kill()
        self.wait_over()

    def stop(self) -> int:
        """Ask the process to end, as an operator would; its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait_over()

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process is not None:
            self.kill()

    def said(self) -> str:
        """What all processes of this directory wrote to standard error."""
        return self._log_file.read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_over(self) -> int:
        """Wait until the process has ended; its exit status."""
        assert self._process is not None
        status = self._process.wait(PATIENCE_S)
        process, self._process = self._process, None
        assert process.stdout is not None
        process.stdout.close()
        return status


@contextmanager
def broker_process(
    data: Path, *arguments: str, log_file: Path | None = None
) -> Iterator[BrokerProcess]:
    """A broker that is gone when the test is over. Its log lies beside its data, or where told."""
    log_file = log_file or data.with_name(f"{data.name}.broker.log")
    broker = BrokerProcess(data, *arguments, log_file=log_file)
    try:
        broker.start()
        yield broker
    except BaseException:
        sys.stdout.write(broker.said()[-_SHOWN_CHARS:])  # pytest shows it beside what failed
        raise
    finally:
        broker.end()


def run_ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command as an operator would."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def free_port(count: int = 1) -> int:
    """A port that nobody has, and that nobody is given by chance; or the first of so many."""
    rng = SystemRandom()  # not from the seed: two runs of one seed may be under way at once
    for _ in range(100):
        first = rng.choice(_PORTS)
        if all(map(_is_free, range(first, first + count))):
            return first
    raise AssertionError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
