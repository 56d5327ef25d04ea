"""Every way a command can end."""

import os
import subprocess
import sys

import pytest

from ottla import __version__
from ottla.cli.main import run


def test_the_version_is_printed_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert run(["version"]) == 0
    assert capsys.readouterr().out == f"ottla {__version__}\n" * 2


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: ottla" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in ("serve", "topic", "produce", "consume", "log", "config", "version"):
        assert f"\n  {command} " in listed


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "many"],
        ["consume", "t", "--bogus"],
        ["config", "zzz"],
        ["--broker"],
    ],
)
def test_wrong_usage_is_one_line_with_a_hint_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("ottla: ")
    assert "--help` shows the usage" in captured.err


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "create"],
        ["topic", "list"],
        ["topic", "describe"],
        ["topic", "alter"],
        ["topic", "delete"],
        ["produce"],
        ["consume"],
        ["log", "dump"],
        ["log", "verify"],
        ["config", "list"],
    ],
)
def test_every_command_has_help_with_examples(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    assert f"  ottla {' '.join(command)}" in shown


def test_a_reader_that_leaves_early_gets_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ottla", "config", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_broker_starts_without_what_only_others_need() -> None:
    """No command line, no client; and no package that asks for its version, or reads TOML."""
    script = (
        "import sys; from ottla.cli.main import run; run(['serve', '--help']);"
        "needless = {'typer', 'rich', 'email', 'zipfile', 'csv', 'tomllib'};"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & needless),"
        "[name for name in sys.modules if name.startswith('ottla.client')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr.decode().split() == ["[]", "[]"]


@pytest.mark.parametrize("arguments", [["consume", "t"], ["produce", "t"], ["topic", "list"]])
def test_a_command_starts_without_pydantic(arguments: list[str]) -> None:
    """typer would import it to parse a number: a tenth of a second of CPU for every command."""
    script = (
        "import sys; from ottla.cli.main import run;"
        f"status = run([*{arguments}, '--broker', '127.0.0.1:1']);"
        "print(status, 'pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    assert done.stdout.split() == [b"1", b"False"]


def test_reading_without_a_group_imports_nothing_of_groups() -> None:
    script = "import sys, ottla.cli.consume; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    modules = done.stdout.decode().split()
    assert "ottla.client.reader" in modules
    needless = ("ottla.cli.group", "ottla.client.group", "numpy", "pyarrow", "rich")
    assert not [name for name in modules if name.startswith(needless)]
