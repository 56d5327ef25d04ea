"""The client that the tasks of one worker process share."""

import gc
from collections.abc import Iterator

import pytest

from ottla.model import Endpoint
from ottla.spark.blocking_client import client_for
from ottla.spark.broker_options import BrokerOptions


@pytest.fixture
def thawed() -> Iterator[None]:
    """A process in which nothing is frozen, and whose garbage is collected again afterwards."""
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_a_first_task_has_left_is_not_searched_for_garbage_again() -> None:
    brokers = BrokerOptions(bootstrap=(Endpoint("127.0.0.1", 1),))
    blocking = client_for(brokers)
    assert gc.get_freeze_count() == 0, "the first task has yet to import what it needs"
    assert client_for(brokers) is blocking
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept = [list[int]() for _ in range(100)]
    assert client_for(brokers) is blocking
    assert gc.get_freeze_count() <= frozen, "later tasks may leave garbage"
    assert len(kept) == 100
