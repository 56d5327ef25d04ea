"""The commands that pages show run as they say, all in one Spark."""

import io
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ottla.testing
from examples.logs.__main__ import main as run_logs
from examples.pages import PAGES, ROOT, Block, Command, blocks, commands, is_like
from ottla.cli.main import run
from ottla.spark.registration import register

DEFAULT_ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 120
FOR_SPARK = [page for page in PAGES if any(block.mark == "spark" for block in blocks(page))]


def run_here(command: Command) -> str:
    """The output of a program, errors included, run in this process with the shared session."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        match shlex.split(command.text):
            case ["ottla", *words]:
                run(words)
            case ["python", "-m", "examples.logs", *words]:
                run_logs(words)
            case words:
                raise AssertionError(f"{words[0]} cannot be run here")
    return printed.getvalue()


def run_in_shell(command: Command) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command.text}\n{done.stderr}"
    return done.stdout


def follow(block: Block, address: str) -> None:
    if block.mark == "file":
        Path(block.name).write_text(block.text.replace(DEFAULT_ADDRESS, address))
    if block.mark in ("spark", "test"):
        for command in commands(block):
            printed = (run_here if block.mark == "spark" else run_in_shell)(command)
            shown = command.printed
            assert shown is None or is_like(shown, printed), f"{command.text}\n{printed}"


@pytest.mark.parametrize("page", FOR_SPARK, ids=lambda page: page.name)
def test_the_commands_of_a_page_do_what_it_says(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(spark)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with ottla.testing.broker() as address:
        monkeypatch.setenv("OTTLA_BROKER", address)
        for block in blocks(page):
            follow(block, address)
