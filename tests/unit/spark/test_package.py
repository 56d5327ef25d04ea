"""The public functions of the package can be imported in every way."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")


@pytest.mark.parametrize("name", ["session", "register"])
def test_what_is_offered_can_be_imported_and_asked_for_again(name: str) -> None:
    program = (
        f"from ottla.spark import {name}; import ottla.spark;"
        f" assert callable({name}); assert ottla.spark.{name} is {name}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
