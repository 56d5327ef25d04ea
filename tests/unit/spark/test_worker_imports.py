"""Python processes of Spark load what every query needs, and little else."""

import subprocess
import sys

import pytest

from ottla.spark.worker_imports import DAEMON, PLANNER

# Five to 25 ms each, in every process of every query.
NOT_NEEDED = ("pyarrow.compute", "ottla.client.admin", "ottla.client.groups", "ottla.config")

# Records are read and written again, with nulls in every column that may have them.
ROUND_TRIP = """
import sys
from random import Random

import pyarrow as pa

from ottla.client.partitioner import Partitioner
from ottla.client.partitions import Fetched
from ottla.model import Offset, OffsetRange, TimestampMs, TopicPartition
from ottla.records.batch import Record, build_batch
from ottla.spark.content_digest import content_of
from ottla.spark.decode import COLUMNS, Decoder
from ottla.spark.encode import encode, rows_by_topic

stored = build_batch(
    [
        Record(timestamp_ms=TimestampMs(1), key=b"k", value=None),
        Record(timestamp_ms=TimestampMs(2), key=None, value=b"v", headers=(("h", None),)),
    ]
)
fetched = Fetched(bytes(stored), (), Offset(2))
span = OffsetRange(Offset(0), Offset(2))
found, _ = Decoder().locate(TopicPartition("t", 0), fetched, span)
columns = {name: make(found) for name, make in COLUMNS.items()}
assert columns["offset"].to_pylist() == [0, 1]
written = {name: columns[name] for name in ("key", "value", "topic", "partition", "headers")}
rows = pa.RecordBatch.from_arrays(list(written.values()), names=list(written))
assert content_of(rows).rows == 2
routes = encode(rows, rows_by_topic(rows, None), {"t": Partitioner(1, Random(1))}, TimestampMs(3))
assert [packed.record_count for packs in routes.values() for packed in packs] == [2]
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("module", ["ottla.spark.source", "ottla.spark.sink"])
def test_readers_and_writers_load_without_what_few_queries_need(module: str) -> None:
    loaded = run(f"import sys, {module}; print(*sys.modules)").split()
    assert module in loaded
    assert not set(NOT_NEEDED).intersection(loaded)


def test_records_are_read_and_written_without_pandas() -> None:
    """`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas, which takes 0.3 s."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert run(ROUND_TRIP).strip() == "False"


@pytest.mark.parametrize(
    ("program", "is_frozen"), [(DAEMON, True), (PLANNER, True), ("app", False)]
)
def test_only_processes_of_spark_leave_what_is_loaded_out_of_collections(
    program: str, is_frozen: bool
) -> None:
    pretend = f"__spec__ = spec_from_loader({program!r}, None)"
    imports = "import gc; from importlib.util import spec_from_loader"
    frozen = run(f"{imports}; {pretend}; import ottla.spark; print(gc.get_freeze_count())")
    assert (int(frozen) > 0) is is_frozen


def run(program: str) -> str:
    """The output of a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
