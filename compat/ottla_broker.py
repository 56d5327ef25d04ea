"""An Ottla broker in its own process, that can be ended in any way and started again."""

import signal
from pathlib import Path
from typing import Self

from cli.processes import PATIENCE_S, RunningBroker, start_broker
from compat.apache import free_port


class OttlaBroker:
    """Keeps its port, directory and options through restarts."""

    def __init__(self, data: Path, *options: str, **settings: int) -> None:
        self.data = data
        given = [f"--set={name.replace('_', '.')}={settings[name]}" for name in settings]
        self._options = [*options, *given]
        self.address = f"127.0.0.1:{free_port()}"
        self._running: RunningBroker | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, no process is left behind."""
        if self._running is not None:
            self._running.process.kill()
            self._reap()

    def start(self) -> None:
        self._running = start_broker(self.data, "--listen", self.address, *self._options)

    def end(self, signum: signal.Signals) -> None:
        assert self._running is not None
        self._running.process.send_signal(signum)
        status = self._reap()
        # A broker that logged an error has failed its tests, whatever its clients say.
        log = self.data.with_name(f"{self.data.name}.log").read_text()
        assert status == (0 if signum is signal.SIGTERM else -signum), log
        assert " ERROR " not in log, log
        assert "Traceback" not in log, log

    def _reap(self) -> int:
        assert self._running is not None
        process = self._running.process
        status = process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        self._running = None
        return status
