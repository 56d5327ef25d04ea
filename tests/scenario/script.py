"""Text scenarios: a command, ----, what it is expected to print; read and checked by people.

    # a comment
    join a
    heartbeat b generation=1
    ----
    a: MEMBER_ID_REQUIRED

Commands that stand together are carried out one after the other and their output is compared as
one. With OTTLA_REWRITE=1 in the environment the expectations are rewritten instead, for a person
to look at the difference.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REWRITES: Final = os.environ.get("OTTLA_REWRITE") == "1"
_SEPARATOR: Final = "----"


@dataclass(frozen=True, slots=True)
class Command:
    """A verb, words, and named values: `join a session=6000`."""

    verb: str
    words: tuple[str, ...]
    named: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> "Command":
        verb, *rest = line.split()
        named = dict(word.split("=", 1) for word in rest if "=" in word)
        return cls(verb, tuple(word for word in rest if "=" not in word), named)


@dataclass(frozen=True, slots=True)
class Step:
    """Comments and commands as they stand in the file, and what they should print."""

    lines: tuple[str, ...]
    expected: tuple[str, ...]

    @property
    def commands(self) -> list[Command]:
        return [Command.parse(line) for line in self.lines if line and not line.startswith("#")]


def read(path: Path) -> list[Step]:
    steps = []
    for block in path.read_text().strip().split("\n\n"):
        lines = tuple(block.splitlines())
        cut = lines.index(_SEPARATOR) if _SEPARATOR in lines else len(lines)
        steps.append(Step(lines[:cut], lines[cut + 1 :]))
    return steps


def check(path: Path, carry_out: Callable[[Command], list[str]]) -> None:
    """Run a scenario, or rewrite what it expects."""
    written = []
    for step in read(path):
        printed = tuple(line for command in step.commands for line in carry_out(command))
        if not REWRITES:
            said = "\n".join(step.lines)
            assert printed == step.expected, f"{path.name}, after:\n{said}"
        if step.commands:
            written.append("\n".join((*step.lines, _SEPARATOR, *printed)))
        else:
            written.append("\n".join(step.lines))
    if REWRITES:
        path.write_text("\n\n".join(written) + "\n")
