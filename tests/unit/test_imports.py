"""The product's modules run in tests as they run for users."""

import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

import ottla


@pytest.mark.parametrize("name", ["ottla.broker.apis", "ottla.broker.handlers.transactions"])
def test_pytest_does_not_rewrite_the_asserts_of_the_product(name: str) -> None:
    assert type(import_module(name).__loader__) is SourceFileLoader


def test_importing_ottla_loads_nothing_else() -> None:
    script = (
        "import sys, ottla; print(sorted(n for n in sys.modules if n.startswith('ottla')),"
        " 'asyncio' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['ottla'] False"


def test_names_of_the_package_are_found_when_they_are_used() -> None:
    names: dict[str, str] = vars(ottla)["_LAZY"]
    for name in names:
        assert getattr(ottla, name).__name__ == name
    stub = Path(ottla.__file__).with_suffix(".pyi").read_text()
    assert {line.split()[-1] for line in stub.splitlines() if " as " in line} == set(names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(ottla, "nothing")  # noqa: B009
