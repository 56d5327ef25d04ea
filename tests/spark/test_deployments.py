"""The same program in a bare environment, over Spark Connect and on a standalone cluster.

Each runs in processes of its own: what is found by a Spark, and how, is decided once for a process.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import ottla.testing
from ottla.spark.java_home import find_java_home
from spark.programs.round_trip import ROWS

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "spark" / "programs"
TIMEOUT_S = 540
READY_S = 240
EVERYTHING = list(range(ROWS))
HOST = "127.0.0.1"
NO_PANDAS = 'raise ImportError("there is no pandas here")\n'
BROKEN = 'raise RuntimeError("a neighbour that cannot be imported")\n'
USELESS = "#!/bin/sh\necho 'a python3 that has nothing' >&2\nexit 1\n"

pytestmark = [pytest.mark.jvm, pytest.mark.nightly]


def run(
    program: str, home: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a program with a broker of its own; what it told."""
    environment = dict(environment or os.environ)
    path = [str(TESTS), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    with ottla.testing.broker() as address:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / program), address, str(home), *arguments],
            capture_output=True,
            text=True,
            cwd=home,
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[:5000]
    assert "BrokenPipeError" not in done.stderr, "workers are silent when their session ends"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# A bare environment


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """No PYSPARK_PYTHON and a `python3` that has nothing, no pandas, and a broken neighbour."""
    home = tmp_path_factory.mktemp("bare")
    modules, programs = home / "modules", home / "bin"
    modules.mkdir()
    programs.mkdir()
    (modules / "pandas.py").write_text(NO_PANDAS)
    (modules / "pyspark_broken.py").write_text(BROKEN)
    (programs / "python3").write_text(USELESS)
    (programs / "python3").chmod(0o755)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYSPARK_") and name != "SPARK_HOME"
    }
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = f"{modules}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    return run("bare_session.py", home, environment=environment)


def test_the_python_that_runs_is_the_one_that_workers_get(bare: dict[str, Any]) -> None:
    assert bare["python"] == sys.executable
    assert bare["first"] == EVERYTHING


def test_pandas_need_not_be_there(bare: dict[str, Any]) -> None:
    assert not bare["pandas"]
    assert bare["second"] == EVERYTHING


def test_a_broken_neighbour_hides_the_format_until_it_is_registered(bare: dict[str, Any]) -> None:
    assert not bare["is_found_by_itself"]
    assert bare["is_found_after_register"]


def test_a_task_whose_process_dies_is_read_again_from_its_beginning(bare: dict[str, Any]) -> None:
    assert bare["survived"]


# Spark Connect


def test_connect_reads_and_writes_batches_and_streams(tmp_path: Path) -> None:
    found = run("connect_session.py", tmp_path)
    assert found["client"] == "pyspark.sql.connect.session"
    assert found["first"] == found["second"] == EVERYTHING


# A standalone cluster


def test_a_cluster_reads_and_writes_batches_and_streams(tmp_path: Path) -> None:
    with cluster(tmp_path) as master:
        found = run("cluster_session.py", tmp_path, master)
    assert found["executors"] == 2
    assert found["first"] == found["second"] == EVERYTHING


@contextmanager
def cluster(home: Path) -> Iterator[str]:
    """A master and two workers of the Spark that pip installed."""
    port = free_port()
    master = f"spark://{HOST}:{port}"
    where = ["--host", HOST, "--webui-port", "0"]
    with ExitStack() as up:
        leading = daemon(home, "master.Master", "master", *where, "--port", str(port))
        wait_said(up.enter_context(leading), "I have been elected leader")
        workers = list[Path]()
        for name in ("worker-1", "worker-2"):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(home / f"{name}-work")]
            working = daemon(home, "worker.Worker", name, *where, *work, master)
            workers.append(up.enter_context(working))
        for log in workers:
            wait_said(log, "Successfully registered with master")
        yield master


@contextmanager
def daemon(home: Path, kind: str, name: str, *arguments: str) -> Iterator[Path]:
    """A process of a cluster; yields its log file."""
    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home(os.environ, home)),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }
    bash, log_file = shutil.which("bash"), home / f"{name}.log"
    assert bash is not None
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [bash, str(command), f"org.apache.spark.deploy.{kind}", *arguments],
            stdout=log,
            stderr=log,
            cwd=home,
            env=environment,
        )
    try:
        yield log_file
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def wait_said(log_file: Path, words: str) -> None:
    deadline_s = time.monotonic() + READY_S
    while words not in (text := log_file.read_text()):
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
