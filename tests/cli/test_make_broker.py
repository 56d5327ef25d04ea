"""`make broker` on a fresh checkout: what it installs, what it says, and a broker in the end."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
NEEDED: Final = ("Makefile", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in")
READY: Final = "ottla ready on "
# What pip and setuptools say to developers of packages.
NOISE: Final = re.compile(r"deprecat|legacy|notice|warning", re.IGNORECASE)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_needs_neither_spark_nor_the_tools_of_tests(tmp_path: Path) -> None:
    """Packages come from PyPI, or from where pip was told to find them."""
    for name in (*NEEDED, "requirements.lock", "requirements-broker.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    made = subprocess.Popen(
        ["make", "broker", "LISTEN=127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert made.stdout is not None
    said = list[str]()
    try:
        for line in made.stdout:
            said.append(line)
            if line.startswith(READY):
                break
    finally:
        os.killpg(made.pid, signal.SIGTERM)  # make, and the broker below it
        made.communicate(timeout=120)
    assert said[-1].startswith(READY), "".join(said)
    assert [line for line in said if NOISE.search(line)] == []
    assert any(re.search(r" \d+/\d+ \w", line) for line in said), "it shows how far it is"
    packages = {path.name for path in (tmp_path / ".venv").glob("lib/*/site-packages/*")}
    assert "uvloop" in packages
    assert not {"pyspark", "pyarrow", "pytest", "mypy", "confluent_kafka"} & packages
