"""The house rules of tools/tidy.py hold, and its ratchet turns one way."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.tidy import (
    RATCHET,
    ROOT,
    RULES,
    Measured,
    Rule,
    Tree,
    docstring_subjects,
    function_lengths,
    lowered,
    mocks,
    problems,
    read_ratchet,
    skips,
    sleeps,
    words_retired,
    write_ratchet,
)

LENGTHS = Rule("functions", 70, "give a part of it a name", function_lengths)


def measured(**values: int) -> Mapping[str, Measured]:
    return {
        name: Measured(value, [f"src/{name}.py:1: def {name}"]) for name, value in values.items()
    }


def tree_with(root: Path, path: str, text: str) -> Tree:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return Tree(root)


@pytest.fixture(scope="module")
def tree() -> Tree:
    """All sources, parsed once; they are large, and go when the last rule has been looked at."""
    return Tree(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_holds(tree: Tree, rule: Rule) -> None:
    found = problems(rule, rule.measure(tree), read_ratchet(ROOT).get(rule.name, {}))
    assert not found, "\n\n".join(["", *found])


def test_a_value_over_the_limit_is_a_problem_with_its_place_and_remedy() -> None:
    [problem] = problems(LENGTHS, measured(small=70, large=71), {})
    assert "functions: large: 71, at most 70 allowed: give a part of it a name" in problem
    assert "src/large.py:1: def large" in problem


def test_what_the_ratchet_allows_may_shrink_and_not_grow() -> None:
    allowed = {"large": 90}
    assert problems(LENGTHS, measured(large=90), allowed) == []
    assert problems(LENGTHS, measured(large=80), allowed) == []
    [problem] = problems(LENGTHS, measured(large=91), allowed)
    assert "at most 90 allowed" in problem


@pytest.mark.parametrize("values", [{"large": 70}, {}], ids=["no longer over", "gone"])
def test_an_entry_that_is_not_needed_must_be_removed(values: dict[str, int]) -> None:
    [problem] = problems(LENGTHS, measured(**values), {"large": 90})
    assert "--update" in problem


def test_update_lowers_and_removes_and_never_raises_or_adds() -> None:
    allowed = {"shrunk": 100, "grown": 80, "short": 90, "gone": 90}
    now = measured(shrunk=90, grown=100, short=70, new=100)
    assert lowered(LENGTHS, now, allowed) == {"shrunk": 90, "grown": 80}


def test_the_ratchet_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / RATCHET).parent.mkdir(parents=True)
    ratchet = {"functions": {"src/a.py A.b": 71}, "words": {"broker letter": 2}}
    write_ratchet(tmp_path, ratchet | {"mocks": {}})
    assert read_ratchet(tmp_path) == ratchet


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("letters_of(batch)  # each letter", ["letter", "letter"]),
        ("class LetterSlice:", ["letter"]),
        ('log.warning("nobody answers")', ["nobody", "answer"]),
        ("from ottla.broker.late_handlers import LateHandlers", ["late import"]),
        ("a dead letter goes to dead_letters, DeadLetters", []),
        ("frozenset(ascii_letters)  # ASCII letters, no letter else", ["letter"]),
        ("give --figure for the figure", ["figure"]),
        ("from ottla.protocol.messages.offsets import LATEST", []),
        ("configure(prefigured, mischance)", []),
        ("the timer was too late", []),
    ],
)
def test_retired_words_are_found_in_names_and_texts(line: str, expected: list[str]) -> None:
    assert list(words_retired(line)) == expected


def test_a_docstring_that_begins_with_a_pronoun_counts_for_its_room(tmp_path: Path) -> None:
    text = (
        '"""A log."""\n\ndef f() -> None:\n    """Its end."""\n\ndef g() -> None:\n    """Item."""'
    )
    found = docstring_subjects(tree_with(tmp_path, "src/ottla/storage/log.py", text))
    assert found["storage"].found == ["src/ottla/storage/log.py:3: the docstring begins with 'its'"]


def test_mocks_sleeps_and_bare_skips_are_found_in_tests(tmp_path: Path) -> None:
    text = """
from unittest.mock import Mock

@pytest.mark.skip
def test_a() -> None:
    time.sleep(1)
    pytest.skip()
    pytest.skip("kcat is not installed")

@pytest.mark.skipif(True)
@pytest.mark.skipif(True, reason="no kernel")
def test_b() -> None: ...
"""
    tree = tree_with(tmp_path, "tests/test_x.py", text)
    counts = [rule(tree)["tests/test_x.py"].value for rule in (mocks, sleeps, skips)]
    assert counts == [1, 1, 3]
