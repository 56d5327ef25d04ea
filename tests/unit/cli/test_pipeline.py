"""What commands of `ottla pipeline` say when Spark is not there, or says too much."""

import pytest

from ottla.cli.pipeline_options import need_spark
from ottla.errors import UsageRefused

TRACEBACK = """\
[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "/somewhere/source.py", line 7, in read
    check_losses(found)
ottla.spark.plan.DataLoss: offsets 3 to 5 are missing
\tat org.apache.spark.Something
"""


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.inside"])
def test_a_missing_spark_is_one_line_with_what_to_install(package: str) -> None:
    with pytest.raises(UsageRefused, match=r"pip install 'ottla\[spark,java\]'"):
        need_spark(package)


def test_an_error_of_python_is_told_by_its_last_line() -> None:
    pytest.importorskip("pyspark")
    from ottla.cli.pipeline_running import explain

    assert explain(TRACEBACK) == "ottla.spark.plan.DataLoss: offsets 3 to 5 are missing"
    assert explain("[PARSE] wrong\n\n== SQL ==\nSELECT") == "[PARSE] wrong"
    assert explain("") == ""
