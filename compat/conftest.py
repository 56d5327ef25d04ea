"""One Ottla broker, one Apache broker, a Java program for each; all started when first needed."""

import signal
from collections.abc import Iterator

import pytest

from compat.apache import ApacheBroker
from compat.java import JavaScenarios
from compat.ottla_broker import OttlaBroker

Broker = OttlaBroker | ApacheBroker


@pytest.fixture(scope="session")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    with OttlaBroker(tmp_path_factory.mktemp("ottla") / "data") as broker:
        yield broker
        broker.end(signal.SIGTERM)


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    with ApacheBroker(tmp_path_factory.mktemp("apache") / "broker") as broker:
        yield broker


@pytest.fixture(scope="session")
def played_on(request: pytest.FixtureRequest) -> Broker:
    """Ottla, and Apache Kafka: what a scenario expects of one it must find in the other."""
    broker: Broker = request.getfixturevalue(request.param)
    return broker


@pytest.fixture(scope="session")
def scenarios(
    played_on: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaScenarios]:
    program = JavaScenarios(played_on.address, tmp_path_factory.mktemp("java") / "client.log")
    yield program
    program.close()
