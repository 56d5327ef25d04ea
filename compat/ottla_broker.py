"""An Ottla broker in its own process, that can be ended in any way and started again."""

import signal
from pathlib import Path

from cli.processes import PATIENCE_S, RunningBroker, start_broker
from compat.apache import free_port


class OttlaBroker:
    """Keeps its port and directory through restarts."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.address = f"127.0.0.1:{free_port()}"
        self._running: RunningBroker | None = None

    def start(self) -> None:
        self._running = start_broker(self.data, "--listen", self.address)

    def end(self, signum: signal.Signals) -> None:
        assert self._running is not None
        process = self._running.process
        process.send_signal(signum)
        status = process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        self._check(status, 0 if signum is signal.SIGTERM else -signum)

    def _check(self, status: int, expected: int) -> None:
        """A broker that logged an error has failed its tests, whatever its clients say."""
        log = self.data.with_name(f"{self.data.name}.log").read_text()
        assert status == expected, log
        assert " ERROR " not in log, log
        assert "Traceback" not in log, log
