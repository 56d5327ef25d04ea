"""The hooks of compat/outcomes.py and two brokers, for every test below this folder."""

import signal
from collections.abc import Iterator

import pytest

from compat.apache import ApacheBroker
from compat.ottla_broker import OttlaBroker
from compat.outcomes import (
    pytest_addoption,
    pytest_collection_finish,
    pytest_configure,
    pytest_deselected,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

__all__ = [
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_deselected",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]


@pytest.fixture(scope="module")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    with OttlaBroker(tmp_path_factory.mktemp("ottla") / "data") as broker:
        yield broker
        broker.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    with ApacheBroker(tmp_path_factory.mktemp("apache") / "broker") as broker:
        yield broker
