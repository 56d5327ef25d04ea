"""Which tests go to one worker together."""

import pytest

from scheduling import GROUPS, group_of, scope_of


@pytest.mark.parametrize(("module", "group"), GROUPS.items())
def test_a_group_that_shares_a_jvm_is_one_scope(module: str, group: str) -> None:
    name = f"tests/spark/{module}::test_a_row[first]"
    assert group_of(name) == group
    assert scope_of(name) == group


def test_a_module_of_small_tests_is_one_scope() -> None:
    names = [f"tests/unit/records/test_batch.py::test_a_header[{case}]" for case in ["a::b", "c"]]
    assert {scope_of(name) for name in names} == {"tests/unit/records/test_batch.py"}


@pytest.mark.parametrize(
    "name",
    [
        "tests/spark/test_readers.py::test_a_row[first]",  # needs no JVM
        "tests/crash/test_kill.py::test_kills_lose_nothing",
        "tests/cli/test_streams.py::test_of_a_name_that_a_module_of_spark_has",
    ],
)
def test_any_other_test_is_a_scope_of_its_own(name: str) -> None:
    assert group_of(name) is None
    assert scope_of(name) == name
