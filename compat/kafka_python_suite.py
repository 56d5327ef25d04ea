"""kafka-python's own integration tests, from its source distribution, against a broker of ours."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
CACHE: Final = ROOT / ".cache" / "compat"
RESULTS: Final = HERE / "kafka_python_results.toml"
KAFKA_VERSION: Final = "4.3"  # whose protocol versions the client shall use
_RUN_S: Final = 280
_TEST_S: Final = 60


@dataclass(frozen=True, slots=True)
class Expected:
    """What the list that is checked in says: outcome by test, and what is not run at all."""

    outcomes: dict[str, str]
    out_of_scope: list[str]


def read_expected() -> Expected:
    listed = tomllib.loads(RESULTS.read_text())
    version = importlib.metadata.version("kafka-python")
    assert listed["version"] == version, f"the list is for {listed['version']}, not {version}"
    outcomes = dict.fromkeys(listed["passed"], "passed")
    for group in listed["not_passed"]:
        assert group["reason"]
        outcomes |= dict.fromkeys(group["tests"], group["outcome"])
    left_out = [name for group in listed["out_of_scope"] for name in group["tests"]]
    return Expected(outcomes, left_out)


def unpack(directory: Path) -> Path:
    """The source distribution, made complete with what it leaves out of its test package."""
    version = importlib.metadata.version("kafka-python")
    archive = CACHE / f"kafka_python-{version}.tar.gz"
    if not archive.exists():
        pytest.fail(f"{archive.name} is missing: run `make compat`", pytrace=False)
    with tarfile.open(archive) as content:
        content.extractall(directory, filter="data")
    source = directory / f"kafka_python-{version}"
    (source / "test" / "__init__.py").touch()
    shutil.copy(HERE / "kafka_python_service.py", source / "test" / "service.py")
    return source


def run(source: Path, address: str, out_of_scope: list[str]) -> dict[str, str]:
    """Run every test that is in scope; outcome by `module::test`."""
    report = source / "report.xml"
    search = os.pathsep.join([str(source), str(HERE), str(ROOT / "tests")])
    environment = {
        **os.environ,
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_URI": f"kafka://{address}",
        "KAFKA_ROOT": str(source),  # must be a directory, even if nothing is started from it
        "PYTHONPATH": search,
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "test/integration", "-q", "--tb=short"),
            *("-p", "kafka_python_plugin", "-p", "no:randomly", "-p", "no:cacheprovider"),
            *("-o", "addopts=", "-o", "log_level=WARNING", f"--timeout={_TEST_S}"),
            f"--junitxml={report}",
            *(f"--deselect=test/integration/{_node(name)}" for name in out_of_scope),
        ],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    sys.stdout.write(done.stdout)
    return _outcomes(report)


def _node(name: str) -> str:
    module, _, test = name.partition("::")
    return f"{module}.py::{test}" if test else f"{module}.py"


def _outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        module = case.attrib["classname"].removeprefix("test.integration.")
        words = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        outcome = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        name = f"{module}::{case.attrib['name']}"
        outcomes[name] = outcome[words[0]] if words else "passed"
    return outcomes
