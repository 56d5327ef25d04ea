"""A real broker in its own process, and the real command in another."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMAND = [sys.executable, "-m", "ottla.cli.main"]
READY = "ottla ready on "
PATIENCE_S = 30

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


def run_ottla(
    *arguments: str, broker: str = "", stdin: str | bytes = ""
) -> subprocess.CompletedProcess[str]:
    """Run one command as a user would; never with a traceback."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        env={**os.environ, "OTTLA_BROKER": broker},
        timeout=PATIENCE_S,
        check=False,
    )
    finished = subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )
    assert "Traceback" not in finished.stderr, finished.stderr
    return finished
