"""A process without the compiled kernel works, and warns of it once."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

# An importer that finds no `_kernel`, as where the package was installed without a C compiler.
WITHOUT_KERNEL = """
import sys
sys.modules["ottla.spark._kernel"] = None
"""
READ_AND_WRITE = """
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from ottla.spark.kernel import IS_COMPILED
from ottla.spark.plan import TaskRange
from ottla.spark.sink import batch_writer
from ottla.spark.source import batch_reader
from ottla.spark.read_task import read_task
from ottla.spark.write_task import write_at_least_once

options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
schema = StructType([StructField("value", BinaryType())])
for _ in range(3):  # the driver makes readers and writers
    reader = batch_reader(options, schema)
    writer = batch_writer({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}, schema,
                          overwrite=False)
    # An executor runs tasks: without ranges and without rows, so no broker is needed.
    assert not list(read_task(None, (), reader.options, reader.projection))
    assert write_at_least_once(iter([]), writer.options).rows == 0
print("compiled" if IS_COMPILED else "not compiled")
"""
TASK_ONLY = """
from ottla.spark.write_options import parse_write_options
from ottla.spark.write_task import write_at_least_once

options = parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
write_at_least_once(iter([]), options)
write_at_least_once(iter([]), options)
print("not compiled")
"""


def run(program: str) -> tuple[str, str]:
    """The standard output and standard error of a Python process with default warning filters."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("program", [READ_AND_WRITE, TASK_ONLY], ids=["driver", "task"])
def test_a_process_without_the_kernel_warns_once_and_says_what_to_install(program: str) -> None:
    printed, errors = run(WITHOUT_KERNEL + program)
    assert printed == "not compiled"
    assert errors.count("KernelMissing: ") == 1, errors
    assert "ten to forty times slower" in errors
    assert sys.executable in errors
    assert "apt-get install gcc python3-dev" in errors


def test_a_process_with_the_kernel_does_not_warn() -> None:
    printed, errors = run(READ_AND_WRITE)
    if printed != "compiled":
        pytest.skip("the kernel is not compiled: python setup.py build_ext --inplace")
    assert "KernelMissing" not in errors


def test_an_older_kernel_that_lacks_a_function_is_not_used() -> None:
    older = """
import sys, types
sys.modules["ottla.spark._kernel"] = types.ModuleType("_kernel")
"""
    printed, errors = run(older + READ_AND_WRITE)
    assert printed == "not compiled"
    assert "KernelMissing" in errors
