"""A broker for the tests of this folder, topics of their own, and ways to fill them."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import ottla.testing
from spark.topics import Topic

FOLDER = Path(__file__).parent
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


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
