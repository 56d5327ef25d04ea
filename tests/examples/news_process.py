"""The news example in a process group of its own, as a terminal would run it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).parents[2]
READY = "ottla ready on "
PAUSE_S = 0.5
PATIENCE_S = 500  # for Spark to start and end on a machine with far too much to do


@dataclass
class NewsProcess:
    """The example while it runs, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def collect(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    def said(self, start: str) -> str | None:
        """The first line that begins like this."""
        return next((line for line in list(self.lines) if line.startswith(start)), None)

    def wait_said(self, start: str) -> str:
        self.wait_until(lambda: self.said(start) is not None, start)
        line = self.said(start)
        assert line is not None
        return line

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        """Ask again and again, for as long as it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert self.process.poll() is None, f"{what}: it has ended before"
            assert time.monotonic() < deadline_s, f"{what}: not within {PATIENCE_S} s"
            time.sleep(PAUSE_S)

    @property
    def address(self) -> str:
        return self.wait_said(READY).removeprefix(READY)

    def press_ctrl_c(self) -> int:
        """What a terminal does: the signal goes to the whole group. The exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextmanager
def news_process(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[NewsProcess]:
    words = [sys.executable, "-m", "examples.news", *arguments]
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        start_new_session=True,
    ) as process:
        news = NewsProcess(process)
        reader = Thread(target=news.collect)
        reader.start()
        try:
            yield news
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_S)
            reader.join(PATIENCE_S)
            sys.stdout.write("\n".join(news.lines))  # for who has to find out why a test failed
            assert not reader.is_alive(), "something it started still runs"
