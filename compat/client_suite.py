"""The tests that a client library has for itself, run as they are against a broker of ours.

What each is expected to do is checked in, as TOML: `version` of the library, `passed`, `not_passed`
with outcome and reason, `out_of_scope` with a reason.
"""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from compat.peers import CACHE, HERE, ROOT

_TEST_S: Final = 60


@dataclass(frozen=True, slots=True)
class Expected:
    """What the list that is checked in says: outcome by test, and what is not run at all."""

    outcomes: dict[str, str]
    out_of_scope: list[str]


def read_expected(results: Path, library: str) -> Expected:
    listed = tomllib.loads(results.read_text())
    version = importlib.metadata.version(library)
    assert listed["version"] == version, f"the list is for {listed['version']}, not {version}"
    outcomes = dict.fromkeys(listed["passed"], "passed")
    for group in listed["not_passed"]:
        assert group["reason"]
        outcomes |= dict.fromkeys(group["tests"], group["outcome"])
    left_out = [name for group in listed["out_of_scope"] for name in group["tests"]]
    return Expected(outcomes, left_out)


def unpack(archive: str, directory: Path) -> None:
    path = CACHE / archive
    if not path.exists():
        pytest.fail(f"{archive} is missing: run `python -m compat.peers`", pytrace=False)
    subprocess.run(["tar", "-xf", path, "-C", directory], check=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A folder of tests in unpacked sources, and what running it takes."""

    source: Path
    tests: str
    modules: Sequence[str] = ()  # all that are there, if none are named
    plugin: str
    environment: Mapping[str, str]
    run_s: float

    def run(self, out_of_scope: Sequence[str]) -> dict[str, str]:
        """Run every test that is in scope; outcome by `module::test`."""
        report = self.source / "report.xml"
        search = os.pathsep.join([str(self.source), str(HERE), str(ROOT / "tests")])
        wanted = [f"{self.tests}/{module}.py" for module in self.modules] or [self.tests]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *wanted, "-q", "--tb=short"),
                *("-p", self.plugin, "-p", "no:randomly", "-p", "no:cacheprovider"),
                *("-o", "addopts=", "-o", "log_level=WARNING", f"--timeout={_TEST_S}"),
                f"--junitxml={report}",
                *(f"--deselect={self.tests}/{_node(name)}" for name in out_of_scope),
            ],
            cwd=self.source,
            env={**os.environ, "PYTHONPATH": search, **self.environment},
            capture_output=True,
            text=True,
            timeout=self.run_s,
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        sys.stdout.write(done.stdout)
        return _outcomes(report, self.tests.replace("/", "."))


def _node(name: str) -> str:
    module, _, test = name.partition("::")
    return f"{module}.py::{test}" if test else f"{module}.py"


def _outcomes(report: Path, package: str) -> dict[str, str]:
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        place = case.attrib["classname"].removeprefix(f"{package}.").replace(".", "::")
        words = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        outcome = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        outcomes[f"{place}::{case.attrib['name']}"] = outcome[words[0]] if words else "passed"
    return outcomes
