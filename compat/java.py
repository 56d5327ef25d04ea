"""The Java virtual machine, and what compat/ runs on it."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from compat import peers

JARS: Final = peers.jars("java")
PROGRAM: Final = peers.program("java")

Restart = Callable[[str], None]


def command(main_class: str, *arguments: str, heap_mb: int = 256, more: str = "") -> list[str]:
    """What to execute for a main class of ours or of Apache Kafka."""
    java = shutil.which("java")
    if java is None or not PROGRAM.exists():
        pytest.fail(
            "Java or the jars are missing: run `python -m compat.peers kafka`", pytrace=False
        )
    path = f"{PROGRAM}:{JARS}/*"
    return [java, f"-Xmx{heap_mb}m", *more.split(), "-cp", path, main_class, *arguments]


class JavaScenarios:
    """compat/java running in a process of its own, playing one scenario after the other."""

    def __init__(self, address: str, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command("ottla.compat.Main", address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def play(self, name: str, restart: Restart) -> str | None:
        """Why the scenario failed, or None; `restart` is called with a signal when it wishes so."""
        self._say(name)
        while True:
            line = self._hear()
            if "restart" in line:
                restart(line["restart"])
                self._say("restarted")
            else:
                assert line["scenario"] == name
                problem: str | None = line["problem"]
                return problem

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Java program has ended"
        found: dict[str, Any] = json.loads(line)
        return found


def list_scenarios() -> list[str]:
    listing = command("ottla.compat.Main", "--list")
    return subprocess.run(
        listing, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
