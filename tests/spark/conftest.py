"""A broker for the tests of this folder, topics of their own, and ways to fill them."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ottla.testing
from spark.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
collect_ignore_glob = [] if HAS_SPARK else ["test_*.py"]
_numbers = count(1)


def pytest_report_header() -> str:
    return "tests/spark: " + (
        "run" if HAS_SPARK else "left out, the extra `spark` is not installed"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session that nobody has told of the formats: its lookup has to find them."""
    from pyspark.sql import SparkSession

    from ottla.spark.java import find_java_home
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
