"""The house rules that a program can check, as measurements that may only shrink.

    python -m tools.tidy               print every rule that does not hold; status 1 if one does not
    python -m tools.tidy --update      lower tests/unit/tidy.toml to what is measured today

`tests/unit/tidy.toml` has what was over a limit when its rule was made. `--update` lowers and
removes entries and never raises or adds one: a function, class or file that is renamed keeps its
number under the new name, by hand. `tests/unit/test_tidy.py` runs all of this.
"""

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RATCHET: Final = Path("tests/unit/tidy.toml")
PACKAGE: Final = Path("src/ottla")
_CODE: Final = ("src", "tools", "bench", "compat", "examples")
_CODE_AND_TESTS: Final = (*_CODE, "tests")
_SHOWN_MAX: Final = 20

FUNCTION_LINES_MAX: Final = 70
CLASS_LINES_MAX: Final = 400
FILE_LINES_MAX: Final = 500

# Words that this code no longer uses, and the field's words for them.
RETIRED: Final[Mapping[str, str]] = {
    "answer": "response; of a function: returns",
    "chance": "random",
    "everybody": "the subject's name: every client, all readers",
    "figure": "metric, count, total",
    "hears": "receives, is notified",
    "late import": "lazy import",
    "letter": "record, record slice",
    "moment": "time, position",
    "neighbour": "the thing itself",
    "nobody": "the subject's name: no client, no reader",
    "patience": "timeout",
    "places": "offsets, positions, indexes, slots",
    "question": "request, query",
    "somebody": "the subject's name: a client, a caller",
    "told": "notified",
    "whoever": "the subject's name: the client, the caller",
    "wish": "change, request",
    "world": "the thing itself",
}
# Where a retired word is part of the field's word, an option that users type, or a key that is
# stored in checkpoints.
_NOT_RETIRED: Final = re.compile(
    r"dead[ _-]?letters?|ascii[ _]letters|--figure\b|\"figures\"", re.IGNORECASE
)
_LATE: Final = re.compile(r"late[ _]?handlers?|later? import|import(?:s|ed)? late\b", re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_FORMS: Final = {form: word for word in RETIRED for form in (word, f"{word}s", f"{word}es")}

# A docstring names its subject first.
_PRONOUNS: Final = {"it", "its", "they", "this", "that", "these", "those", "one", "others"}
_PERSONS: Final = {"somebody", "nobody", "everybody", "whoever"}
_QUESTION_WORDS: Final = {"what", "who", "whose", "which"}
NO_SUBJECT: Final = frozenset(_PRONOUNS | _PERSONS | _QUESTION_WORDS)


@dataclass(slots=True)
class Measured:
    """How much of something there is, and where it is."""

    value: int = 0
    found: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.value += 1
        self.found.append(where)


@dataclass(frozen=True)
class Source:
    """A file of the tree, parsed once."""

    path: str
    text: str

    @cached_property
    def module(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.module))

    @property
    def room(self) -> str:
        """The folder of the package that has the file; the file's own name if none does."""
        return Path(self.path).relative_to(PACKAGE).parts[0]

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@dataclass(frozen=True)
class Tree:
    """The Python files of a checkout."""

    root: Path

    def sources(self, *folders: str) -> Iterator[Source]:
        for folder in folders:
            yield from (source for source in self._all if source.path.startswith(f"{folder}/"))

    @cached_property
    def package(self) -> tuple[Source, ...]:
        return tuple(self.sources(PACKAGE.as_posix()))

    @cached_property
    def _all(self) -> tuple[Source, ...]:
        paths = (path for folder in _CODE_AND_TESTS for path in (self.root / folder).rglob("*.py"))
        return tuple(
            Source(path.relative_to(self.root).as_posix(), path.read_text())
            for path in sorted(paths)
        )


Measurements = Mapping[str, Measured]


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that is measured by key, and how much of it a key may have."""

    name: str
    limit: int
    remedy: str
    measure: Callable[[Tree], Measurements]


def function_lengths(tree: Tree) -> Measurements:
    return _lengths(tree.sources(*_CODE_AND_TESTS), ast.FunctionDef, ast.AsyncFunctionDef)


def class_lengths(tree: Tree) -> Measurements:
    return _lengths(tree.sources(*_CODE), ast.ClassDef)


def file_lengths(tree: Tree) -> Measurements:
    return {
        source.path: Measured(lines := source.text.count("\n"), [source.at(lines, "end of file")])
        for source in tree.sources(*_CODE)
    }


def retired_words(tree: Tree) -> Measurements:
    """How often each retired word is in each room, be it in a name, a text or a comment."""
    counts: dict[str, Measured] = {}
    for source in tree.package:
        for number, line in enumerate(source.text.splitlines(), start=1):
            for word in words_retired(line):
                counted = counts.setdefault(f"{source.room} {word}", Measured())
                counted.add(source.at(number, f"{word!r}: say {RETIRED[word]}"))
    return counts


def words_retired(line: str) -> Iterator[str]:
    if _LATE.search(line):
        yield "late import"
    for word in _WORD.findall(_NOT_RETIRED.sub("", line)):
        if retired := _FORMS.get(word.lower()):
            yield retired


def docstring_subjects(tree: Tree) -> Measurements:
    """How many docstrings of each room begin with a pronoun or a question word."""
    counts: dict[str, Measured] = {}
    for source in tree.package:
        for node in source.nodes:
            if (first := _first_word(node)) in NO_SUBJECT:
                line = getattr(node, "lineno", 1)
                counted = counts.setdefault(source.room, Measured())
                counted.add(source.at(line, f"the docstring begins with {first!r}"))
    return counts


def mocks(tree: Tree) -> Measurements:
    """Imports of mocking libraries, by file."""
    return _by_file(tree.sources(*_CODE_AND_TESTS), _is_mock)


def sleeps(tree: Tree) -> Measurements:
    """Calls of `time.sleep` in tests, by file."""
    return _by_file(tree.sources("tests", "compat"), _is_sleep)


def skips(tree: Tree) -> Measurements:
    """Skips that do not say why, by file."""
    return _by_file(tree.sources("tests", "compat"), _is_bare_skip)


RULES: Final = (
    Rule("functions", FUNCTION_LINES_MAX, "give a part of it a name", function_lengths),
    Rule("classes", CLASS_LINES_MAX, "find the second noun in it", class_lengths),
    Rule("files", FILE_LINES_MAX, "split it by nouns", file_lengths),
    Rule("words", 0, "use the field's word (CONTRIBUTING.md)", retired_words),
    Rule("docstrings", 0, "name the subject first: what it is or returns", docstring_subjects),
    Rule("mocks", 0, "write a fake (tests/fakes)", mocks),
    Rule("sleeps", 0, "wait for what is to happen, or use fakes.virtual_loop", sleeps),
    Rule("skips", 0, "give a reason that names what is missing", skips),
)


def problems(rule: Rule, measured: Measurements, allowed: Mapping[str, int]) -> list[str]:
    """What does not hold, a paragraph each; nothing if the rule holds."""
    found = []
    for key, one in measured.items():
        limit = max(rule.limit, allowed.get(key, 0))
        if one.value > limit:
            shown = "\n".join(f"  {where}" for where in one.found[:_SHOWN_MAX])
            more = len(one.found) - _SHOWN_MAX
            found.append(
                f"{rule.name}: {key}: {one.value}, at most {limit} allowed: {rule.remedy}\n{shown}"
                + (f"\n  and {more} more" if more > 0 else "")
            )
    found += (
        f"{rule.name}: {key} no longer needs its entry in {RATCHET}: python -m tools.tidy --update"
        for key in allowed
        if key not in measured or measured[key].value <= rule.limit
    )
    return found


def lowered(rule: Rule, measured: Measurements, allowed: Mapping[str, int]) -> dict[str, int]:
    """The allowed values, each at most what is measured, and only those that are still needed."""
    return {
        key: min(limit, measured[key].value)
        for key, limit in allowed.items()
        if key in measured and measured[key].value > rule.limit
    }


def read_ratchet(root: Path) -> dict[str, dict[str, int]]:
    found = tomllib.loads((root / RATCHET).read_text())
    assert found.keys() <= {rule.name for rule in RULES}, (
        f"{RATCHET} names a rule that is not there"
    )
    return found


def write_ratchet(root: Path, ratchet: Mapping[str, Mapping[str, int]]) -> None:
    lines = [
        "# What was over a limit of tools/tidy.py: may only shrink (python -m tools.tidy --update)."
    ]
    for name, allowed in ratchet.items():
        if allowed:
            lines += ["", f"[{name}]"]
            lines += (f"{json.dumps(key)} = {value}" for key, value in sorted(allowed.items()))
    (root / RATCHET).write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--update", action="store_true", help="lower what is allowed, never raise it"
    )
    is_update = parser.parse_args().update
    tree = Tree(ROOT)
    ratchet = read_ratchet(ROOT)
    measured = {rule.name: rule.measure(tree) for rule in RULES}
    if is_update:
        ratchet = {
            rule.name: lowered(rule, measured[rule.name], ratchet.get(rule.name, {}))
            for rule in RULES
        }
        write_ratchet(ROOT, ratchet)
    found = [
        problem
        for rule in RULES
        for problem in problems(rule, measured[rule.name], ratchet.get(rule.name, {}))
    ]
    print(*found, sep="\n\n") if found else print("tidy")
    return 1 if found else 0


def _lengths(sources: Iterable[Source], *kinds: type[ast.AST]) -> Measurements:
    """Lines by definition; the longest where several have a name (overloads, properties)."""
    longest: dict[str, Measured] = {}
    for source in sources:
        for name, node in _named(source.module, ""):
            if isinstance(node, kinds):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                key = f"{source.path} {name}"
                if key not in longest or longest[key].value < lines:
                    longest[key] = Measured(lines, [source.at(node.lineno, name)])
    return longest


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _named(parent: ast.AST, prefix: str) -> Iterator[tuple[str, _Definition]]:
    """Every definition below a node with its dotted name."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _Definition):
            yield f"{prefix}{node.name}", node
            yield from _named(node, f"{prefix}{node.name}.")
        else:
            yield from _named(node, prefix)


def _first_word(node: ast.AST) -> str:
    if not isinstance(node, ast.Module | _Definition):
        return ""
    found = _WORD.match((ast.get_docstring(node, clean=False) or "").lower())
    return found[0] if found else ""


def _by_file(sources: Iterable[Source], is_found: Callable[[ast.AST], bool]) -> Measurements:
    counts: dict[str, Measured] = {}
    for source in sources:
        for node in source.nodes:
            if is_found(node):
                line = getattr(node, "lineno", 1)
                code = source.text.splitlines()[line - 1].strip()
                counts.setdefault(source.path, Measured()).add(source.at(line, code))
    return counts


def _is_mock(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.startswith(("unittest", "mock")) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("unittest", "mock"))


def _is_sleep(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) in {"time.sleep", "sleep"}


def _is_bare_skip(node: ast.AST) -> bool:
    if isinstance(node, _Definition):
        return any(_dotted(one) == "pytest.mark.skip" for one in node.decorator_list)
    if not isinstance(node, ast.Call):
        return False
    has_reason = any(keyword.arg == "reason" for keyword in node.keywords)
    match _dotted(node.func):
        case "pytest.skip" | "pytest.mark.skip":
            return not node.args and not has_reason
        case "pytest.mark.skipif":
            return not has_reason
        case _:
            return False


def _dotted(node: ast.expr) -> str:
    """The name `a.b.c`; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if outer := _dotted(value):
            return f"{outer}.{name}"
        case _:
            return ""


if __name__ == "__main__":
    sys.exit(main())
