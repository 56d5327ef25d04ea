"""Every client by its name."""

from typing import Final

from compat import kcat_client
from compat.adapter import Client, Library
from compat.aiokafka_client import AiokafkaClient
from compat.confluent_client import ConfluentClient
from compat.kafka_python_client import KafkaPythonClient
from compat.kcat_client import KcatClient

LIBRARIES: Final[dict[str, type[Library]]] = {
    one.name: one for one in (ConfluentClient, KafkaPythonClient, AiokafkaClient)
}
CLIENTS: Final[dict[str, type[Client]]] = {**LIBRARIES, KcatClient.name: KcatClient}


def installed_clients() -> list[type[Client]]:
    """All of them, or all but kcat, which is no Python package."""
    return [one for one in CLIENTS.values() if one is not KcatClient or kcat_client.is_installed()]
