"""A real broker in its own process, and the real command in another."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.cli.main import run

COMMAND = [sys.executable, "-m", "ottla"]
READY = "ottla ready on "
PATIENCE_S = 120  # only for what hangs: a busy machine must not fail a test

Ottla = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker in its own process."""

    process: subprocess.Popen[str]
    address: str
    data: Path

    def stop(self) -> int:
        """Ask it to end, as an operator would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def start_broker(data: Path, *more: str) -> RunningBroker:
    """Start a broker on a free port and wait until it says that it is ready."""
    arguments = ["serve", "--data", str(data), "--listen", "127.0.0.1:0", *more]
    with (data.parent / f"{data.name}.log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(READY), Path(log.name).read_text()
    return RunningBroker(process, line.removeprefix(READY).strip(), data)


def wait_until(is_true: Callable[[], bool], what: str = "what the test waits for") -> None:
    """Ask again and again; patience is only for a broker or command that hangs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline_s, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.01)


def run_ottla(
    *arguments: str, broker: str = "", stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one command as a user would, in a process of its own; never with a traceback."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "OTTLA_BROKER": broker},
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def call_ottla(
    *arguments: str, broker: str = "", stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """The same inside this process, which spares the second it takes Python to import it all."""
    err = io.StringIO()
    with (
        tempfile.TemporaryFile("w+") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as out,
        pytest.MonkeyPatch.context() as patch,
    ):
        file.write(stdin)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("OTTLA_BROKER", broker)
        patch.setenv("OTTLA_TRACEBACK", "1")
        status = run(list(arguments))
        out.flush()
        out.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, out.read(), err.getvalue())
