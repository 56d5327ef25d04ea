"""One broker for all tests of this folder, topics of their own, and every client in turn."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from compat import kcat_client
from compat.adapter import Admin, Client, Library, MakeTopic
from compat.clients import CLIENTS, LIBRARIES, installed_clients
from compat.confluent_client import ConfluentClient
from compat.kafka_python_client import KafkaPythonClient
from compat.kcat_client import KcatClient
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import create_topic

_numbers = count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """One broker for all tests; they keep out of each other's way by their topics' names."""
    served = ServedBroker(
        tmp_path_factory.mktemp("compat") / "data", {"log.retention.check.interval.ms": "50"}
    )
    served.start()
    yield served
    served.stop()


@pytest.fixture
def raw(broker: ServedBroker) -> Iterator[RawConnection]:
    with connected(broker.address) as connection:
        yield connection


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Names that no other test uses."""
    return lambda: f"topic-{next(_numbers)}"


@pytest.fixture
def make_topic(raw: RawConnection, new_name: Callable[[], str]) -> MakeTopic:
    """Makes a topic of this test's own; settings by Kafka's names, with _ for dots."""

    def make(partitions: int = 1, **config: object) -> str:
        name = new_name()
        create_topic(raw, name, partitions, **config)
        return name

    return make


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: ServedBroker) -> Client:
    """Every client in turn."""
    if request.param == KcatClient.name and not kcat_client.is_installed():
        pytest.skip(kcat_client.MISSING)
    return CLIENTS[request.param](broker.address)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, broker: ServedBroker) -> Library:
    """Every client that can be called from Python in turn."""
    return LIBRARIES[request.param](broker.address)


@pytest.fixture
def admin(library: Library) -> Admin:
    return library.admin()


@pytest.fixture
def confluent(broker: ServedBroker) -> ConfluentClient:
    return ConfluentClient(broker.address)


@pytest.fixture
def kafka_python(broker: ServedBroker) -> KafkaPythonClient:
    return KafkaPythonClient(broker.address)


@pytest.fixture
def every_client(broker: ServedBroker) -> list[Client]:
    """All that are installed, for what one writes and all others read."""
    return [one(broker.address) for one in installed_clients()]
