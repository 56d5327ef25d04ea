"""The list of what passes, results.toml: read, compared with a run, written anew, shown as a table.

Each part of compat/ (a module of tests) has its tests in `passed`, or in `differs` with the reason.
"""

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
LIST: Final = HERE / "results.toml"
TABLE_COLUMNS: Final = ("Part (`ONLY=`)", "What it runs", "Tests", "Pass", "Differ")
DIFFERENCE_COLUMNS: Final = ("Part", "Test", "Why it differs")
_UNEXPLAINED: Final = "not looked into yet"
_HEADER: Final = """\
# What passes in `make compat`, by part and test; `differs` says why a test does not. The run
# compares itself with this list: a new failure fails, a new pass is said. `make compat WRITE=1`
# writes the parts anew that it ran.
"""


@dataclass(slots=True)
class Part:
    """What is known of one part: the tests that pass, and why others do not."""

    passed: set[str] = field(default_factory=set)
    differs: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> set[str]:
        return self.passed | self.differs.keys()


Results = dict[str, Part]


def read(path: Path | None = None) -> Results:
    """Every part by its name; none if the list is not there yet."""
    path = path or LIST
    if not path.exists():
        return {}
    listed = tomllib.loads(path.read_text())
    return {
        name: Part(set(part["passed"]), dict(part.get("differs", {})))
        for name, part in listed.items()
    }


def merge(listed: Results, seen: Mapping[str, Mapping[str, str]]) -> Results:
    """The list after a run with these outcomes ("passed", "failed", "skipped"), by part and test.

    A test that was left out keeps what the list said of it; one that is gone leaves the list.
    """
    merged = dict(listed)
    for name, outcomes in seen.items():
        old, new = listed.get(name, Part()), Part()
        for test, outcome in outcomes.items():
            if outcome == "passed" or (outcome == "skipped" and test in old.passed):
                new.passed.add(test)
            elif outcome == "failed" or test in old.differs:
                new.differs[test] = old.differs.get(test, _UNEXPLAINED)
        merged[name] = new
    return merged


def render(results: Results) -> str:
    """The text of results.toml."""
    lines = [_HEADER]
    for name in sorted(results):
        part = results[name]
        lines.append(f"[{name}]\npassed = [")
        lines += [f"  {json.dumps(test)}," for test in sorted(part.passed)]
        lines.append("]\n")
        if part.differs:
            lines.append(f"[{name}.differs]")
            lines += [f"{json.dumps(t)} = {json.dumps(w)}" for t, w in sorted(part.differs.items())]
            lines.append("")
    return "\n".join(lines)


def rows(results: Results) -> Iterator[Sequence[str]]:
    """A row of docs/compatibility.md for every part, with what the docstring of its module says."""
    for name in sorted(results):
        part = results[name]
        text = ast.get_docstring(ast.parse((HERE / f"test_{name}.py").read_text())) or ""
        counts = (len(part.known), len(part.passed), len(part.differs))
        yield (f"`{name}`", text.partition("\n")[0].rstrip("."), *map(str, counts))


def differences(results: Results) -> Iterator[Sequence[str]]:
    """A row of docs/compatibility.md for every test that does not pass."""
    for name in sorted(results):
        for test, reason in sorted(results[name].differs.items()):
            yield f"`{name}`", f"`{test}`", reason
