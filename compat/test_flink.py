"""Flink's Kafka connector: a job copies a topic exactly once, through failures and restarts."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from compat import peers, records
from compat.ottla_broker import OttlaBroker

pytestmark = [pytest.mark.compat, pytest.mark.needs("flink"), pytest.mark.timeout(600)]

COUNT: Final = 3000
FAILURES: Final = 3
PARTITIONS: Final = 2
_JOB_S: Final = 400
# What Flink reflects upon, as its own start scripts open it.
_OPENED: Final = ("java.lang", "java.util", "java.util.concurrent", "java.lang.reflect", "java.net")


def run_job(*arguments: str) -> str:
    java = shutil.which("java")
    assert java is not None
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    path = f"{peers.program('flink')}:{peers.jars('flink')}/*"
    done = subprocess.run(
        [java, "-Xmx768m", *opened, "-cp", path, "ottla.compat.FlinkJob", *arguments],
        capture_output=True,
        text=True,
        timeout=_JOB_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def test_a_topic_is_copied_exactly_once_through_failures(tmp_path: Path) -> None:
    with OttlaBroker(tmp_path / "data") as broker:
        records.create_topics(broker.address, PARTITIONS, "source", "target")
        sent = [f"record {number}" for number in range(COUNT)]
        records.send(broker.address, "source", [(value, value) for value in sent])
        said = run_job(broker.address, "source", "target", str(COUNT), str(FAILURES))
        assert f"failed {FAILURES} times" in said
        found = records.read_until(
            broker.address, "target", PARTITIONS, lambda found: len(found) >= COUNT
        )
        assert sorted(value for _, value in found) == sorted(sent)
        broker.end(signal.SIGTERM)
