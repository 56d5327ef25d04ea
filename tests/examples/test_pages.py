"""What README and docs show is run, compared and followed."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from cli.processes import call_ottla
from examples.pages import (
    PAGES,
    ROOT,
    Command,
    blocks,
    commands,
    is_like,
    shown_ottla_commands,
    unmarked_shell_blocks,
)
from ottla.cli.serve import read_config

DEFAULT_ADDRESS = "127.0.0.1:9092"
PATIENCE_S = 60
FOR_SPARK = [page for page in PAGES if any(block.mark == "spark" for block in blocks(page))]
WITH_COMMANDS = [
    page
    for page in PAGES
    if page not in FOR_SPARK and any(block.mark != "from" for block in blocks(page))
]
WITH_EXCERPTS = [page for page in PAGES if any(block.mark == "from" for block in blocks(page))]


def name_of(page: Path) -> str:
    return page.name


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory that looks as a clone does after `make setup`."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command: Command, directory: Path, address: str) -> str:
    """What a command prints, errors included; it must end well."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text.replace(DEFAULT_ADDRESS, address)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env={**os.environ, "PATH": path, "OTTLA_BROKER": address},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command.text}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_the_commands_of_a_page_do_what_it_says(
    page: Path, checkout: Path, ottla_broker: str
) -> None:
    for block in blocks(page):
        if block.mark == "file":
            (checkout / block.name).write_text(block.text)
        elif block.mark == "test":
            for command in commands(block):
                printed = run(command, checkout, ottla_broker)
                shown = command.printed
                assert shown is None or is_like(shown, printed), f"{command.text}\n{printed}"
    for file in checkout.glob("*.toml"):
        read_config(file, [])  # raises what is wrong with a setting


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_shell_block_is_run_or_says_why_not(page: Path) -> None:
    assert [f"{page.name}:{line}" for line in unmarked_shell_blocks(page)] == []


SHOWN = sorted({command for page in PAGES for command in shown_ottla_commands(page)})


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_that_is_only_shown_has_the_options_that_it_shows(command: str) -> None:
    words = shlex.split(command.partition(" #")[0])[1:]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    names = list(itertools.takewhile(re.compile("[a-z-]+$").match, words))
    # Names of commands, then perhaps an argument that looks like one.
    helps = (call_ottla(*names[:count], "--help") for count in range(len(names), 0, -1))
    shown = next(one for one in helps if one.returncode == 0)
    assert [option for option in options if option not in shown.stdout] == []


@pytest.mark.parametrize("page", WITH_EXCERPTS, ids=name_of)
def test_the_excerpts_of_a_page_are_in_their_files(page: Path) -> None:
    for block in (one for one in blocks(page) if one.mark == "from"):
        source = (ROOT / block.name).read_text()
        found = any(indent(block.text, " " * depth) in source for depth in (0, 4, 8))
        assert found, f"{page.name}:{block.line} is not in {block.name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_a_console_block_is_commands_and_what_they_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        dedent(
            """\
            <!-- test -->
            ```console
            $ echo one
            one
            $ true
            ```
            """
        )
    )
    (block,) = blocks(page)
    assert list(commands(block)) == [Command("echo one", "one\n"), Command("true", "")]


def test_dots_stand_for_anything_in_a_line() -> None:
    assert is_like("topic t  id ...  settings\n", "topic t  id aGk-x  settings\n")
    assert not is_like("topic t\n", "topic u\n")
    assert not is_like("...\n", "one\ntwo\n")
