"""A run of `make compat` beside its list: what is new is named, what is missing left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat import peers, results
from compat.results import Part

ROOT = Path(__file__).parents[2]
CONFTEST = """\
from pathlib import Path
from compat import results
results.LIST = Path(__file__).with_name("results.toml")
from compat.outcomes import *
from compat.outcomes import pytest_runtest_makereport
"""
TESTS = """\
import pytest
def test_passes(): pass
def test_differs(): assert False
def test_mended(): pass
@pytest.mark.needs("kafka-go")
def test_of_a_peer(): pass
"""
LISTED = Part({"test_passes", "test_of_a_peer"}, {"test_differs": "why", "test_mended": "why"})


def run(directory: Path, tests: str, listed: Part, *options: str) -> tuple[int, list[str]]:
    """The exit status and the lines of a run in a directory of its own, without any peer."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (directory / "test_part.py").write_text(tests)
    (directory / "results.toml").write_text(results.render({"part": listed}))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(directory)],
        capture_output=True,
        text=True,
        cwd=directory,
        env={
            **os.environ,
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_differences_do_not_fail_a_run_and_new_passes_are_named(tmp_path: Path) -> None:
    status, lines = run(tmp_path, TESTS, LISTED)
    assert status == 0, lines
    assert "part: 2 passed, 1 differ or failed, 1 left out" in lines
    assert "passes now, and is listed as different: part::test_mended" in lines
    reason = "Go is missing (Debian: apt-get install golang-go)"
    assert f"left out: kafka-go (1 test): {reason}" in lines
    assert "0 peers ran, 1 left out" in lines


def test_a_failure_that_is_not_listed_fails_the_run(tmp_path: Path) -> None:
    listed = Part(LISTED.known)
    assert run(tmp_path, TESTS, listed)[0] == 1


def test_a_test_that_is_not_listed_fails_the_run_until_it_is_written(tmp_path: Path) -> None:
    tests = TESTS + "def test_new(): pass\n"
    status, lines = run(tmp_path, tests, LISTED)
    assert status == 1
    name = "not listed in compat/results.toml (WRITE=1 lists it): part::test_new"
    assert name in lines
    run(tmp_path, tests, LISTED, "--write-results", "-k", "not differs")
    written = results.read(tmp_path / "results.toml")["part"]
    assert written.passed == {*LISTED.passed, "test_mended", "test_new"}
    assert written.differs == {"test_differs": "why"}


def test_each_peer_that_cannot_be_had_is_named_with_what_would_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = list[str]()
    left_out = peers.fetch(["kafka", "kafka-go", "kafkajs", "flink"], said.append)
    assert list(left_out) == ["kafka", "kafka-go", "kafkajs", "flink"]
    assert all("Debian: apt-get install" in reason for reason in left_out.values())
    assert said == []
