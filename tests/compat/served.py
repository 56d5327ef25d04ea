"""A broker in its own process, with its metrics, that can be killed and started again."""

import contextlib
import itertools
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

from cli.processes import PATIENCE_S, RunningBroker, start_broker

# Test processes that run side by side look in different places.
_ports = itertools.cycle(range(10_000 + os.getpid() % 1000 * 20, 32_000))


class ServedBroker:
    """Keeps its port and directory through every restart."""

    def __init__(self, data: Path, settings: dict[str, str]) -> None:
        self._data = data
        self._settings = settings
        self._metrics = f"127.0.0.1:{_free_port()}"
        self._listen = f"127.0.0.1:{_free_port()}"
        self._running: RunningBroker | None = None

    @property
    def address(self) -> str:
        return self._listen

    def start(self) -> None:
        assert self._running is None
        sets = [word for item in self._settings.items() for word in ("--set", "=".join(item))]
        self._running = start_broker(
            self._data, "--listen", self._listen, "--metrics", self._metrics, *sets
        )

    def end(self, signum: signal.Signals) -> int:
        """Send a signal and wait for the process to end; its exit status."""
        assert self._running is not None
        running, self._running = self._running, None
        running.process.send_signal(signum)
        status = running.process.wait(PATIENCE_S)
        assert running.process.stdout is not None
        running.process.stdout.close()
        self._check_log()
        return status

    def stop(self) -> None:
        """End it as an operator would."""
        assert self.end(signal.SIGTERM) == 0

    def _check_log(self) -> None:
        """A broker that logged an error has failed its tests."""
        log = self._data.with_name(f"{self._data.name}.log").read_text()
        assert " error  " not in log, log
        assert " critical " not in log, log
        assert "Traceback" not in log, log

    def metric(self, name: str, **labels: str) -> float:
        """The value that Prometheus would scrape now."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=PATIENCE_S) as page:
            text = page.read().decode()
        words = ",".join(f'{key}="{value}"' for key, value in labels.items())
        sample = re.escape(name + (f"{{{words}}}" if words else ""))
        found = re.search(rf"^{sample} (\S+)$", text, re.MULTILINE)
        assert found is not None, f"{name} {labels} is not in:\n{text}"
        return float(found[1])


def _free_port() -> int:
    """Below the ports that the system gives to clients: it must still be free after a restart."""
    for port in _ports:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
