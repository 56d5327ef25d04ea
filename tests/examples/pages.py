"""What the pages for users show: commands, files and excerpts, found by the comment before them.

<!-- test -->            the commands of an `sh` or `console` block are run
<!-- file NAME -->       the block is a file that later commands use
<!-- from PATH -->       the block is an excerpt of a file of the repository
<!-- spark -->           commands that need Spark: tests/spark runs them, with one Spark for all
<!-- shown: REASON -->   the commands are not run; options of `ottla` are compared with its help
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK: Final = re.compile(
    r"^<!-- (?P<mark>test|file|from|spark)(?: (?P<name>\S+))? -->\n"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


_RUN: Final = re.compile(r"^<!-- (?:test|spark) -->$")
_SHOWN: Final = re.compile(r"^<!-- shown: \S.* -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block that promises something."""

    mark: str
    name: str
    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """One command line, and what it prints if the page says so."""

    text: str
    printed: str | None


def blocks(page: Path) -> list[Block]:
    """The marked blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            found["mark"],
            found["name"] or "",
            found["language"],
            found["text"],
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def unmarked_shell_blocks(page: Path) -> list[int]:
    """The lines of shell blocks that are neither run nor say why not."""
    lines = page.read_text().splitlines()
    return [
        number
        for number, line in enumerate(lines)
        if line in ("```sh", "```console")
        and not _RUN.match(lines[number - 1])
        and not _SHOWN.match(lines[number - 1])
    ]


def shown_ottla_commands(page: Path) -> list[str]:
    """The `ottla` commands of blocks that are not run, a line each."""
    lines = iter(page.read_text().splitlines())
    found = list[str]()
    for line in lines:
        if not _SHOWN.match(line):
            continue
        prompt = "$ " if next(lines) == "```console" else ""
        text = "\n".join(iter(lambda: next(lines), "```")).replace("\\\n", " ")
        start = f"{prompt}ottla "
        found += [one.removeprefix(prompt) for one in text.splitlines() if one.startswith(start)]
    return found


def commands(block: Block) -> Iterator[Command]:
    """An `sh` block is one script; in a `console` block `$ ` begins a command, then its output."""
    if block.language == "sh":
        yield Command(block.text, None)
        return
    assert block.language == "console", f"line {block.line}: {block.language} cannot be run"
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        first, _, printed = part.partition("\n")
        yield Command(first, printed)


def is_like(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows; `...` stands for anything in a line."""
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, printed) is not None
