"""What commands of `ottla pipeline` say when Spark is not there, or says too much."""

import subprocess
import sys

import pytest

from ottla.cli.exit_codes import OK, WRONG_USAGE
from ottla.cli.pipeline.options import need_spark
from ottla.errors import UsageRefused

TRACEBACK = """\
[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "/somewhere/source.py", line 7, in read
    check_losses(found)
ottla.spark.plan.DataLoss: offsets 3 to 5 are missing
\tat org.apache.spark.Something
"""

WITHOUT_SPARK = """\
import sys
sys.modules["pyspark"] = None  # as if it were not installed
from ottla.cli.main import run
sys.exit(run(["pipeline", *sys.argv[1:]]))
"""


def without_spark(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    [("sql", "t", "SELECT 1"), ("archive", "t", "lake", "--once"), ("init", "p", "--topic", "t")],
)
def test_without_spark_there_is_one_line_with_what_to_install(words: tuple[str, ...]) -> None:
    done = without_spark(*words)
    assert done.returncode == WRONG_USAGE
    assert done.stderr.count("\n") == 1
    assert "pip install 'ottla[spark,java" in done.stderr


def test_help_needs_no_spark() -> None:
    done = without_spark("archive", "--help")
    assert done.returncode == OK, done.stderr
    assert "--partition-by" in done.stdout


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.inside"])
def test_a_missing_spark_is_one_line_with_what_to_install(package: str) -> None:
    with pytest.raises(UsageRefused, match=r"pip install 'ottla\[spark,java\]'"):
        need_spark(package)


def test_an_error_of_python_is_told_by_its_last_line() -> None:
    pytest.importorskip("pyspark")
    from ottla.cli.pipeline.running import explain

    assert explain(TRACEBACK) == "ottla.spark.plan.DataLoss: offsets 3 to 5 are missing"
    code = "    raise DataLoss(\n    ...<3 lines>...\n    )\n    ~~~~^\n"  # as Python 3.13 shows it
    several = TRACEBACK.replace("    check_losses(found)\n", code)
    assert several != TRACEBACK
    assert explain(several) == "ottla.spark.plan.DataLoss: offsets 3 to 5 are missing"
    assert explain("[PARSE] wrong\n\n== SQL ==\nSELECT") == "[PARSE] wrong"
    assert explain("") == ""
