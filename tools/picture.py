"""Draw docs/terminal.svg: the commands below, really run, and what they really printed.

    python tools/picture.py

Needs port 9092 of this machine for some seconds.
"""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "terminal.svg"
SERVE: Final = "ottla serve"
COMMANDS: Final = (
    "ottla topic create orders --partitions 3",
    r"printf 'ada:2 lamps\nbob:1 chair\nada:1 desk\n' | ottla produce orders --key-separator :",
    "ottla consume orders --format '%p/%o  %k ordered %v\\n'",
    "ottla topic describe orders",
    "python examples/produce_consume_confluent.py 127.0.0.1:9092",
)
_COLUMNS: Final = 92
_READY: Final = "ottla ready on "
_STOP_TIMEOUT_S: Final = 30
_FONT_FACE: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_PAPER: Final = TerminalTheme(
    (27, 29, 35),
    (214, 217, 224),
    [(27, 29, 35)] + [(214, 217, 224)] * 7,
    [(120, 125, 135)] + [(214, 217, 224)] * 7,
)


def main() -> int:
    console = Console(record=True, width=_COLUMNS, file=StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "examples").symlink_to(ROOT / "examples")
        broker = subprocess.Popen(
            shlex.split(SERVE), stdout=subprocess.PIPE, text=True, cwd=directory, env=_environment()
        )
        assert broker.stdout is not None
        try:
            ready = broker.stdout.readline()
            if not ready.startswith(_READY):
                return 1  # it has said why on standard error
            _show(console, f"{SERVE} &", ready)
            for command in COMMANDS:
                _show(console, command, run(command, Path(directory)))
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(_STOP_TIMEOUT_S)
            broker.stdout.close()
    drawn = console.export_svg(title="Ottla", theme=_PAPER, unique_id="ottla")
    PICTURE.write_text(_FONT_FACE.sub("", drawn))  # nothing is fetched when it is looked at
    return 0


def run(command: str, directory: Path) -> str:
    """Run a command line as a person would, on a terminal; what the terminal got to see."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        cwd=directory,
        env=_environment(),
    ) as process:
        os.close(slave)
        seen = _read_all(master)
    os.close(master)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}:\n{seen}")
    return seen


def _read_all(master: int) -> str:
    chunks = []
    try:
        while chunk := os.read(master, 65536):
            chunks.append(chunk)
    except OSError:
        pass  # how Linux says that the other end of a terminal is closed
    return b"".join(chunks).decode().replace("\r\n", "\n")


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color", "OTTLA_BROKER": ""}
    return {**os.environ, **own}


def _show(console: Console, command: str, output: str) -> None:
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print(Text.from_ansi(output.rstrip("\n")))


if __name__ == "__main__":
    sys.exit(main())
