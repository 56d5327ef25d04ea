"""A real broker in its own process, and what can be seen of it from outside."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READY: Final = "ottla ready on "
PATIENCE_S: Final = 60
MIB: Final = 1 << 20

# Attacks create topics; a disk must not fill with them.
_LIMITS: Final = ("max.partitions=2000",)


@dataclass(frozen=True, slots=True)
class AttackedBroker:
    """A broker under attack: its process, its address, its data and its log."""

    process: subprocess.Popen[str]
    host: str
    port: int
    metrics_port: int
    data: Path
    log: Path

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> socket.socket:
        one = socket.socket()  # by hand: looking the address up would cost as much again
        one.settimeout(PATIENCE_S)
        try:
            one.connect((self.host, self.port))
        except OSError:
            one.close()
            raise
        return one

    def rss_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    @contextmanager
    def memory_grows_less_than(self, limit_bytes: int) -> Iterator[None]:
        """Fails when at any moment within, the process held that much more than before."""
        before = self.rss_bytes()
        self.forget_peak()
        yield
        grown = self.peak_bytes() - before
        assert grown < limit_bytes, f"the broker grew by {grown / MIB:.1f} MiB"

    def forget_peak(self) -> None:
        """From now on `peak_bytes` counts anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """The most that the process has held since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def _status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(name)

    def loop_cpu_s(self) -> float:
        """How long the broker's event loop has worked: the time of its main thread on a core."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9

    def cpu_s(self) -> float:
        """How long all threads of the broker have worked."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptor_count(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metric(self, name: str) -> float:
        """A figure without labels from /metrics."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            for line in page.read().decode().splitlines():
                if line.split(" ")[0] in {name, f"{name}_total"}:
                    return float(line.split(" ")[1])
        raise LookupError(name)

    def defects(self) -> list[str]:
        """Lines of the log that tell of our own mistakes."""
        signs = ("request failed", "Traceback", " error ", " critical ", "Exception in")
        lines = self.log.read_text().splitlines()
        return [line for line in lines if any(sign.lower() in line.lower() for sign in signs)]

    def stop(self) -> None:
        """End it as an operator would; an attack must have left it fit for that."""
        assert self.process.poll() is None, f"the broker died: {self.log.read_text()[-4000:]}"
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        assert (status, self.defects()) == (0, [])

    def kill(self) -> None:
        """End it as `kill -9` does, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def attacked_broker(
    directory: Path, *settings: str, descriptors_max: int | None = None
) -> Iterator[AttackedBroker]:
    """Start a broker; afterwards it must still be alive, without a defect in its log."""
    broker = _start(directory, *settings, descriptors_max=descriptors_max)
    try:
        yield broker
        broker.stop()
    except BaseException as problem:
        status, log = broker.process.poll(), broker.log.read_text()[-4000:]
        problem.add_note(f"the broker's exit status then: {status}; its log: {log}")
        raise
    finally:
        broker.kill()


@contextmanager
def doomed_broker(directory: Path) -> Iterator[AttackedBroker]:
    """Start a broker that the test kills; until then there must be no defect in its log."""
    broker = _start(directory)
    try:
        yield broker
        assert broker.defects() == []
    finally:
        broker.kill()


def _start(directory: Path, *settings: str, descriptors_max: int | None = None) -> AttackedBroker:
    log, metrics_port = directory / "broker.log", _free_port()
    command = [sys.executable, "-m", "ottla", "serve"]
    command += ["--data", str(directory / "data"), "--listen", "127.0.0.1:0"]
    command += ["--metrics", f"127.0.0.1:{metrics_port}"]
    for setting in (*_LIMITS, *settings):
        command += ["--set", setting]
    if descriptors_max is not None:
        command = ["prlimit", f"--nofile={descriptors_max}:{descriptors_max}", *command]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(READY), log.read_text()
    host, port = line.removeprefix(READY).strip().rsplit(":", 1)
    return AttackedBroker(process, host, int(port), metrics_port, directory / "data", log)


def wait_until(is_true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Look again and again: what we wait for happens in another process."""
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
