"""Install locked packages and Ottla itself into a virtual environment, and show how far it is.

    python tools/install_packages.py VENV LOCK

pip's own output goes to VENV/setup.log: with --quiet it says nothing for minutes, without it
hundreds of lines, and notes of pip and setuptools to developers of other packages. When pip fails,
the end of that file is shown. Needs nothing but Python: it runs before anything is installed.
"""

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, TextIO

LOG_FILE: Final = "setup.log"
_ROOT: Final = Path(__file__).parent.parent
_PIP_OPTIONS: Final = (
    *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
    "--use-pep517",  # the way that pip will go for every package, and says so for those without
)
_PACKAGE: Final = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
_FOUND: Final = re.compile(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)==([\w.]+)")
_IGNORED: Final = re.compile(r"Ignoring [\w.-]+: markers")  # a package of another system
_SIZE: Final = re.compile(r"Downloading \S+ \(([\d.]+ MB)\)")
_BUILD: Final = re.compile(r"Building (?:editable|wheel) for (\S+)")
_QUIET_S: Final = 5.0  # between two lines where they cannot be overwritten
_TAIL_LINES: Final = 20


class Progress:
    """One line that says what is going on: overwritten on a terminal, else repeated seldom."""

    def __init__(
        self, out: TextIO, total: int, now_s: Callable[[], float], *, is_terminal: bool
    ) -> None:
        self._out = out
        self._total = total
        self._now_s = now_s
        self._is_terminal = is_terminal
        self._begun_s = now_s()
        self._shown_s = float("-inf")
        self._done = 0
        self._name = ""
        self._status = "looking for packages"

    def note(self, line: str) -> None:
        """Take a line of pip's output."""
        if found := _FOUND.search(line):
            self._done += 1
            self._name = f"{found[1]} {found[2]}"
            self._show(f"{self._done}/{self._total} {self._name}")
        elif _IGNORED.match(line):
            self._done += 1
        elif size := _SIZE.search(line):
            self._show(f"{self._done}/{self._total} {self._name}, {size[1]}")
        elif build := _BUILD.search(line):
            self._show(f"building {build[1]}")
        elif line.startswith("Installing collected packages:"):
            self._show(f"installing {line.count(',') + 1} packages")

    def tick(self) -> None:
        """Time has passed: show it if nothing else happened."""
        self._show(self._status)

    def end(self, text: str) -> None:
        """The last line, which stays."""
        self._write(f"{text} ({self._now_s() - self._begun_s:.0f} s)", is_last=True)

    def _show(self, status: str) -> None:
        self._status = status
        now_s = self._now_s()
        if self._is_terminal or now_s - self._shown_s >= _QUIET_S:
            self._shown_s = now_s
            self._write(f"{status} ({now_s - self._begun_s:.0f} s)", is_last=False)

    def _write(self, text: str, *, is_last: bool) -> None:
        if self._is_terminal:
            self._out.write(f"\r\x1b[K  {text}" + ("\n" if is_last else ""))
        else:
            self._out.write(f"  {text}\n")
        self._out.flush()


def run_pip(command: Sequence[str], log: TextIO, progress: Progress) -> int:
    """Run pip, its output into `log`; returns its exit status."""
    lines: SimpleQueue[str | None] = SimpleQueue()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        source = process.stdout

        def read() -> None:
            for line in source:
                lines.put(line)
            lines.put(None)

        reader = Thread(target=read, daemon=True)
        reader.start()
        while True:
            try:
                line = lines.get(timeout=1.0)
            except Empty:
                progress.tick()
                continue
            if line is None:
                break
            log.write(line)
            progress.note(line)
        reader.join()
    return process.returncode


def install(venv: Path, lock: Path, progress: Progress) -> int:
    """Install the packages of `lock`, then Ottla without its dependencies; pip's exit status."""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", *_PIP_OPTIONS]
    steps = [
        [*pip, "--require-hashes", "-r", str(lock)],
        [*pip, "--no-deps", "-e", str(_ROOT)],
    ]
    log_path = venv / LOG_FILE
    with log_path.open("w") as log:
        for step in steps:
            if status := run_pip(step, log, progress):
                break
        else:
            progress.end(f"{venv} is ready")
            return 0
    progress.end("failed")
    with log_path.open() as log:
        tail = "".join(deque(log, _TAIL_LINES))
    sys.stderr.write(f"{tail}pip failed; all that it said is in {log_path}\n")
    return status


def count_packages(lock: str) -> int:
    """How many packages a lock file names."""
    return len(_PACKAGE.findall(lock))


def main() -> int:
    venv, lock = map(Path, sys.argv[1:])
    total = count_packages(lock.read_text())
    progress = Progress(sys.stdout, total, time.monotonic, is_terminal=sys.stdout.isatty())
    return install(venv, lock, progress)


if __name__ == "__main__":
    sys.exit(main())
