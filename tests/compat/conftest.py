"""One broker for all tests of this folder, topics of their own, and every client by its name."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import pytest

from compat import kcat_client
from compat.adapter import Admin, Client
from compat.aiokafka_client import AiokafkaClient
from compat.confluent_client import ConfluentClient
from compat.kafka_python_client import KafkaPythonClient
from compat.kcat_client import KcatClient
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from ottla.errors import ErrorCode
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

LIBRARIES: Final[dict[str, type[Client]]] = {
    one.name: one for one in (ConfluentClient, KafkaPythonClient, AiokafkaClient)
}
CLIENTS: Final[dict[str, type[Client]]] = {**LIBRARIES, KcatClient.name: KcatClient}

MakeTopic = Callable[..., str]

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


def create_topic(raw: RawConnection, name: str, partitions: int = 1, **config: object) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in config.items()
        ],
    )
    answer = raw.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version=7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer


def _make(client_class: type[Client], address: str) -> Client:
    if client_class is KcatClient and not kcat_client.is_installed():
        pytest.skip(kcat_client.MISSING)
    return client_class(address)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: ServedBroker) -> Client:
    """Every client in turn."""
    return _make(CLIENTS[request.param], broker.address)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, broker: ServedBroker) -> Client:
    """Every client that can be called from Python in turn."""
    return _make(LIBRARIES[request.param], broker.address)


@pytest.fixture
def admin(library: Client) -> Admin:
    return library.admin()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def confluent(broker: ServedBroker) -> ConfluentClient:
    return ConfluentClient(broker.address)


@pytest.fixture
def kafka_python(broker: ServedBroker) -> KafkaPythonClient:
    return KafkaPythonClient(broker.address)


@pytest.fixture
def every_client(broker: ServedBroker) -> list[Client]:
    """All that are installed, for what one writes and all others read."""
    found = list(LIBRARIES.values())
    if kcat_client.is_installed():
        found.append(KcatClient)
    return [one(broker.address) for one in found]
