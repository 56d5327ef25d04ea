"""A broker and a Spark session for all tests of this folder, topics of their own to fill.

Tests that ask for `spark` share one JVM. Those that are marked `jvm` start one of their own. Each
kind keeps to one worker (scheduling.py); all others need no JVM and run wherever there is room.
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
from spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
# In CI it has to be there: tests then fail by what they import.
collect_ignore_glob = [] if HAS_SPARK or os.environ.get("CI") == "true" else ["test_*.py"]
# A JVM of tests does not live long enough for the optimising compiler: it takes half the processor
# time without. Every driver of every test is started with these.
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
    """A test that needs a JVM and is in no group would start a session in every worker."""
    has_session = "spark" in getattr(item, "fixturenames", ())
    if (has_session or item.get_closest_marker("jvm")) and item.path.name not in GROUPS:
        raise pytest.UsageError(f"{item.path.name} needs a JVM: name it in tests/scheduling.py")


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark as pip installed it, less the zip from which its Python processes import PySpark.

    Nothing in the zip is compiled. From the installed package a process starts in half the time,
    and Spark gives it ten seconds, however busy the machine is.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = tmp_path_factory.mktemp("spark-home")
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(Path(spec.origin).parent / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session that nobody has told of the formats: its lookup has to find them."""
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
    """No test meets settings or streams that another one has left in the session they share."""
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


@pytest.fixture
def new_topic(address: str) -> Callable[..., Topic]:
    """Topics with names of their own."""

    def make(partitions: int = 1) -> Topic:
        topic = Topic(address, f"spark-{next(_numbers)}")
        topic.create(partitions)
        return topic

    return make


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    return new_topic()
