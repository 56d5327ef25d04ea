"""A Java program in its own process, that can be killed and started again."""

import subprocess
from pathlib import Path
from typing import Self

from compat import java
from compat.apache import LOG_SETTINGS


class JavaProcess:
    """One main class with its arguments; output goes to a log, lines of it can be waited for."""

    def __init__(self, directory: Path, main_class: str, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        log_settings = directory / "log4j2.properties"
        log_settings.write_text(LOG_SETTINGS)
        logging = f"-Dlog4j2.configurationFile={log_settings}"
        self._command = java.command(main_class, *arguments, heap_mb=512, more=logging)
        self.log = directory / "program.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, no process is left behind."""
        self.kill()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, patience_s: float = 60) -> None:
        """Ask it to end, and wait for that."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(patience_s)
        finally:
            self.kill()

    def assert_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]
