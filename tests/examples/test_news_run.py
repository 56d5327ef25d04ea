"""The news example where Spark or the broker cannot start, and what it is told on its way."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

import ottla.testing
from examples.news_process import PATIENCE_S, ROOT, news_process

BROKEN_JAVA = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "21.0.1"' >&2; exit 0;; esac
echo 'this Java runs nothing' >&2
exit 1
"""


@pytest.fixture
def broken_java(tmp_path: Path) -> dict[str, str]:
    """An environment whose Java says its version and does nothing else."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(BROKEN_JAVA)
    java.chmod(0o755)
    return {"JAVA_HOME": str(tmp_path)}


def test_the_broker_stays_up_where_spark_cannot_start(
    tmp_path: Path, broken_java: dict[str, str]
) -> None:
    arguments = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with news_process(*arguments, environment=broken_java) as news:
        problem = news.wait_said("Spark      cannot start: ")
        news.wait_said("news       the broker stays up")
        producer = Producer({"bootstrap.servers": news.address})
        producer.produce("greetings", "hello")
        assert producer.flush(PATIENCE_S) == 0
        assert news.said("Try it from another terminal:") is not None
        assert news.press_ctrl_c() == 0
    log = tmp_path / "data" / "news" / "spark.log"
    assert str(log) in problem
    assert "this Java runs nothing" in log.read_text()
    assert not any("Traceback" in line for line in news.lines), news.lines


def test_a_run_that_should_end_says_by_its_status_that_spark_is_away(
    tmp_path: Path, broken_java: dict[str, str]
) -> None:
    arguments = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--once"]
    with news_process(*arguments, environment=broken_java) as news:
        assert news.process.wait(PATIENCE_S) == 1
    assert news.said("Spark      cannot start: ") is not None


def test_ctrl_c_in_a_terminal_is_no_error_to_make(
    tmp_path: Path, broken_java: dict[str, str]
) -> None:
    makefile = tmp_path / "Makefile"
    words = f"-m examples.news --data {tmp_path}/data --listen 127.0.0.1:0"
    makefile.write_text(f"run:\n\t@{sys.executable} {words}\n")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execvpe("make", ["make", "-f", str(makefile)], {**os.environ, **broken_java})
    try:
        seen = b""
        while b"the broker stays up" not in seen:
            more = read_some(terminal)
            assert more, f"it has ended: {seen.decode()}"
            seen += more
        os.write(terminal, b"\x03")
        while more := read_some(terminal):
            seen += more
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == 0, seen.decode()
        assert b"***" not in seen, seen.decode()
    finally:
        os.close(terminal)


def read_some(terminal: int) -> bytes:
    """What a terminal shows next; nothing when nobody writes to it any more."""
    readable, _, _ = select.select([terminal], [], [], PATIENCE_S)
    assert readable, f"nothing more within {PATIENCE_S} s"
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with (
        ottla.testing.broker() as address,
        news_process("--data", str(tmp_path / "data"), "--listen", address) as news,
    ):
        status = news.process.wait(PATIENCE_S)
    assert status == 2
    assert len(news.lines) == 2, news.lines
    assert address in news.lines[1]


def test_a_feed_that_is_nowhere_is_refused_before_anything_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.news", "--feed", "no/such/feed"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert "--feed no/such/feed is no file, no directory and no http address" in done.stderr
    assert done.stdout == ""
