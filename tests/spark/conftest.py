"""A broker, a Spark session and topics for the tests of this folder, in three tiers.

- Tests without a JVM call readers and writers as Spark's workers do. They run in parallel on all
  workers; starting a JVM in one is an error.
- Tests that use the fixture `spark` share one JVM on one worker (scheduling.py).
- Tests marked `jvm` start their own driver process, on one other worker. Few of them are in
  `make test`; the others are `nightly`.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ottla.testing
from scheduling import GROUPS
from spark.task_context import task
from spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
# In CI Spark must be installed: tests then fail at their imports.
collect_ignore_glob = [] if HAS_SPARK or os.environ.get("CI") == "true" else ["test_*.py"]
# A JVM of a test does not run long enough for the optimising compiler: without it, tests take half
# the processor time. Every driver of every test is started with these.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = JVM_OPTIONS
_numbers = count(1)


def pytest_report_header() -> str:
    return "tests/spark: " + (
        "run" if HAS_SPARK else "left out, the extra `spark` is not installed"
    )


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
            _check_group(item)


def _check_group(item: pytest.Item) -> None:
    """Refuse a test that needs a JVM and is in no group: every worker would start a session."""
    has_session = "spark" in getattr(item, "fixturenames", ())
    if (has_session or item.get_closest_marker("jvm")) and item.path.name not in GROUPS:
        raise pytest.UsageError(f"{item.path.name} needs a JVM: name it in tests/scheduling.py")


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SPARK_HOME as `session()` sets it, for all sessions of tests: workers start in time."""
    from ottla.spark.spark_home import link_spark_home

    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = link_spark_home(Path(spec.origin).parent, tmp_path_factory.mktemp("spark-home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session without `register`: Spark's lookup has to find the formats."""
    from pyspark.sql import SparkSession

    from ottla.spark.java_home import find_java_home
    from ottla.spark.session import settings

    home = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, home))
    builder = SparkSession.builder.appName("tests").master("local[2]")
    conf = {"spark.sql.warehouse.dir": str(home / "warehouse"), "spark.driver.memory": "512m"}
    for name, value in settings("local[2]", has_ui=False, conf=conf).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _session_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the streams and restore the settings that a test leaves in the shared session."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    before = dict(session.conf.getAll)
    yield
    for query in session.streams.active:
        query.stop()
    for name, value in dict(session.conf.getAll).items():
        if name not in before:
            session.conf.unset(name)
        elif before[name] != value:
            session.conf.set(name, before[name])


@pytest.fixture(autouse=True)
def _no_jvm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the tier without a JVM fails if it starts one."""
    if "spark" in request.fixturenames or request.node.get_closest_marker("jvm"):
        return

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("starts a JVM: use the fixture `spark`, or mark the test `jvm`")

    monkeypatch.setattr("pyspark.core.context.launch_gateway", refuse)


@pytest.fixture
def new_topic(address: str) -> Callable[..., Topic]:
    """Makes topics with unique names."""

    def make(partitions: int = 1) -> Topic:
        topic = Topic(address, f"spark-{next(_numbers)}")
        topic.create(partitions)
        return topic

    return make


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    return new_topic()


@pytest.fixture
def batch_task() -> Iterator[None]:
    """Run the test as the first task of a batch."""
    with task():
        yield
