"""The tables in docs/ agree with the code."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "write_tables.py"


@pytest.fixture(scope="module")
def write_tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tables", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    return tool


def test_no_table_is_out_of_date() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_that_is_out_of_date_is_noticed_and_written(write_tables: ModuleType) -> None:
    page = "before\n<!-- table:apis -->\n| old |\n<!-- end -->\nafter\n"
    fresh, is_changed = write_tables.renew(page, {"apis": "| new |\n"})
    assert is_changed
    assert fresh == "before\n<!-- table:apis -->\n| new |\n<!-- end -->\nafter\n"
    assert write_tables.renew(fresh, {"apis": "| new |\n"}) == (fresh, False)


def test_every_table_has_its_place_on_one_page(write_tables: ModuleType) -> None:
    pages = "".join(page.read_text() for page in write_tables.DOCS.glob("*.md"))
    observed = write_tables.Observed([], "")
    for name in write_tables.make_tables(observed):
        assert pages.count(f"<!-- table:{name} -->\n") == 1, name
