"""The table of cases in this package's docstring is true."""

import re
from pathlib import Path

import hostile

_LINE = re.compile(r"^ +(test_\w+): (\w+)$", re.MULTILINE)


def test_every_test_that_the_table_of_cases_names_exists() -> None:
    named = _LINE.findall(hostile.__doc__ or "")
    assert len(named) > 30
    for module, name in named:
        text = (Path(__file__).parent / f"{module}.py").read_text()
        assert f"def test_{name}(" in text, name
