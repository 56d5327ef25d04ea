"""The set-up: what is shown while pip works, and which packages a broker gets."""

import re
import sys
from importlib.metadata import requires
from io import StringIO
from pathlib import Path
from typing import Final

import pytest

from tools.install_packages import Progress, count_packages, install, run_pip

ROOT: Final = Path(__file__).parents[2]
PIP: Final = """\
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Collecting aiokafka==0.14.0 (from -r requirements.lock (line 1))
  Using cached aiokafka-0.14.0-cp311-cp311-manylinux_2_17_x86_64.whl (1.1 MB)
DEPRECATION: Building 'pyspark' using the legacy setup.py bdist_wheel mechanism
Requirement already satisfied: rich==15.0.0 in ./.venv/lib
Collecting pyspark==4.3.0 (from -r requirements.lock (line 70))
  Downloading pyspark-4.3.0.tar.gz (434.2 MB)
  Building wheel for pyspark (pyproject.toml): started
Installing collected packages: pyspark, aiokafka
Successfully installed aiokafka-0.14.0 pyspark-4.3.0
"""


class Screen:
    """Progress with a clock that the test sets."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.now_s = 100.0
        self.out = StringIO()
        self.progress = Progress(self.out, 4, lambda: self.now_s, is_terminal=is_terminal)

    def lines(self) -> list[str]:
        return [line.strip() for line in re.split(r"[\n\r]", self.out.getvalue()) if line.strip()]


def test_a_terminal_shows_every_step_in_one_line() -> None:
    screen = Screen(is_terminal=True)
    for line in PIP.splitlines():
        screen.progress.note(line)
        screen.now_s += 1
    screen.progress.end("ready")
    assert screen.out.getvalue().count("\n") == 1
    shown = [line.removeprefix("\x1b[K").strip() for line in screen.lines()]
    assert shown == [
        "2/4 aiokafka 0.14.0 (1 s)",
        "3/4 rich 15.0.0 (4 s)",
        "4/4 pyspark 4.3.0 (5 s)",
        "4/4 pyspark 4.3.0, 434.2 MB (6 s)",
        "building pyspark (7 s)",
        "installing 2 packages (8 s)",
        "ready (10 s)",
    ]


def test_elsewhere_a_line_is_written_every_few_seconds_and_no_silence_is_long() -> None:
    screen = Screen(is_terminal=False)
    for line in PIP.splitlines():
        screen.progress.note(line)
    for _ in range(12):
        screen.now_s += 1
        screen.progress.tick()
    assert screen.lines() == [
        "2/4 aiokafka 0.14.0 (0 s)",
        "installing 2 packages (5 s)",
        "installing 2 packages (10 s)",
    ]


def test_pips_own_words_go_to_the_log_and_its_status_is_returned() -> None:
    screen, log = Screen(is_terminal=False), StringIO()
    program = f"import sys; print({PIP!r}, end=''); print('refused', file=sys.stderr); sys.exit(3)"
    assert run_pip([sys.executable, "-c", program], log, screen.progress) == 3
    assert set(log.getvalue().splitlines()) == {*PIP.splitlines(), "refused"}
    assert "DEPRECATION" not in screen.out.getvalue()


def test_a_failed_set_up_shows_the_end_of_what_pip_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\nseq 100\necho THESE PACKAGES DO NOT MATCH THE HASHES\nexit 1\n")
    python.chmod(0o755)
    screen = Screen(is_terminal=False)
    assert install(tmp_path, tmp_path / "any.lock", screen.progress) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "THESE PACKAGES DO NOT MATCH THE HASHES",
        f"pip failed; all that it said is in {tmp_path / 'setup.log'}",
    ]
    assert said[:2] == ["82", "83"]
    assert screen.lines() == ["failed (0 s)"]


def locked(name: str) -> dict[str, list[str]]:
    """The packages of a lock file: version and hashes of each, of every system."""
    text = (ROOT / name).read_text()
    entries = [entry.partition("==") for entry in re.split(r"\n(?=\S)", text)]
    assert len(entries) == count_packages(text)
    found: dict[str, list[str]] = {}
    for package, _, rest in entries:
        found.setdefault(package, []).extend([rest.split()[0], *re.findall(r"sha256:\w+", rest)])
    return found


def test_a_broker_gets_the_same_packages_as_the_tests_and_fewer() -> None:
    broker, everything = locked("requirements-broker.lock"), locked("requirements.lock")
    assert {name: everything[name] for name in broker} == broker
    assert not {"pyspark", "pyarrow", "numpy", "pytest", "mypy", "confluent-kafka"} & set(broker)
    declared = [one for one in requires("ottla") or [] if "extra ==" not in one]
    names = {re.split(r"[<>=!~ ;\[]", one)[0] for one in declared}
    assert len(names) > 5
    assert names <= set(broker)
