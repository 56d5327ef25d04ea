"""`ottla pipeline` in processes of its own: signals, metrics, and Spark's declared pipelines."""

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import pyarrow.parquet as pq
import pytest

from spark.topics import Topic

COMMAND = [sys.executable, "-m", "ottla", "pipeline"]
TIMEOUT_S = 400
MEMORY = ("--conf", "spark.driver.memory=512m")
pytestmark = pytest.mark.jvm


class Process:
    """A command whose lines, of output and errors alike, can be waited for."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = list[str]()
        self._lines = Queue[str]()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def line(self, pattern: str) -> re.Match[str]:
        """The next line that looks like this."""
        while True:
            line = self._lines.get(timeout=TIMEOUT_S)
            self.said.append(line)
            assert line, f"it has ended: {self.said}"
            if found := re.search(pattern, line):
                return found

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def running(directory: Path, *words: str) -> Iterator[Process]:
    process = Process(directory, *words)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.nightly
def test_a_stream_goes_on_until_it_is_told_to_stop(topic: Topic, tmp_path: Path) -> None:
    topic.fill(range(3))
    words = ("archive", topic.name, "lake", "--format", "delta", "--broker", topic.address)
    where = ("--master", "local[1]", "--every", "1s", "--metrics", "127.0.0.1:0")
    with running(tmp_path, *words, *where, *MEMORY) as pipeline:
        pipeline.line("^starting Spark")
        assert pipeline.said == ["starting Spark ...\n"]  # before anything that takes time
        address = pipeline.line(r"metrics on (http://\S+)")[1]
        pipeline.line("^batch 0  rows 3  lag 0  ")
        topic.fill(range(3, 5))
        pipeline.line("^batch 1  rows 2  lag 0  ")
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as page:
            metrics = page.read().decode()
        label = f'{{query="archive-{topic.name}"}}'
        assert f"ottla_pipeline_rows_total{label} 5.0\n" in metrics
        assert f"ottla_pipeline_lag{label} 0.0\n" in metrics
        assert pipeline.end() == 0
        pipeline.line("^5 records read in 2 batches")


LATE_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
  [ -e "{once}" ] || {{ : > "{once}"; exec sleep 15; }};;
esac
exec "{python}" "$@"
"""


@pytest.mark.nightly  # Spark waits ten seconds for a Python worker
def test_a_worker_that_starts_late_is_started_again(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.fill(range(3))
    python, once = tmp_path / "python", tmp_path / "was-late"
    python.write_text(LATE_PYTHON.format(once=once, python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(python))  # which runs sources
    words = ("archive", topic.name, "lake", "--format", "delta", "--broker", topic.address)
    code, said = ottla(tmp_path, *words, "--master", "local[1]", "--once", *MEMORY)
    assert code == 0, said
    assert once.exists()
    assert "trying again" in said
    assert "3 records read in 1 batch" in said


def ottla(directory: Path, *words: str) -> tuple[int, str]:
    """A command that ends by itself: its exit code, and what it has said."""
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


class Declared:
    """A declared pipeline that writes a topic to the table `records`."""

    def __init__(self, directory: Path, topic: Topic) -> None:
        self.directory = directory
        words = ("init", "shop", "--topic", topic.name, "--broker", topic.address)
        code, said = ottla(directory, *words)
        assert code == 0, said

    def start(self, *more: str) -> None:
        code, said = ottla(self.directory, "start", "shop", *MEMORY, *more)
        assert code == 0, said

    def files(self) -> dict[str, int]:
        """The table's files, each with its number of rows."""
        found = (self.directory / "shop" / "spark-warehouse" / "records").rglob("*.parquet")
        return {file.name: pq.read_metadata(file).num_rows for file in found}


@pytest.mark.nightly  # two minutes for a Spark Connect server
def test_a_declared_pipeline_writes_what_is_there(topic: Topic, tmp_path: Path) -> None:
    shop = Declared(tmp_path, topic)
    topic.fill(range(4))
    shop.start()
    assert sum(shop.files().values()) == 4


@pytest.mark.nightly
def test_a_declared_pipeline_adds_what_is_new_and_begins_again_when_told_to(
    topic: Topic, tmp_path: Path
) -> None:
    shop = Declared(tmp_path, topic)
    topic.fill(range(4))
    shop.start()
    first = shop.files()
    assert sum(first.values()) == 4
    topic.fill(range(3))
    shop.start()
    assert shop.files().items() >= first.items()
    assert sum(shop.files().values()) == 7
    shop.start("--full-refresh")
    assert sum(shop.files().values()) == 7
    assert not shop.files().keys() & first.keys(), "all of it was written anew"


@pytest.mark.nightly
def test_a_declared_pipeline_is_checked_without_moving_anything(
    topic: Topic, tmp_path: Path
) -> None:
    topic.fill(range(4))
    ottla(tmp_path, "init", "shop", "--topic", topic.name, "--broker", topic.address)
    code, said = ottla(tmp_path, "validate", "shop", *MEMORY)
    assert code == 0, said
    assert not list((tmp_path / "shop").rglob("*.parquet"))
    tables = tmp_path / "shop" / "transformations" / "records.py"
    tables.write_text(tables.read_text().replace('read.table("records")', 'read.table("orders")'))
    code, said = ottla(tmp_path, "validate", "shop", *MEMORY)
    assert code == 1
    assert "orders" in said
    assert "the pipeline failed" in said
