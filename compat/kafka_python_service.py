"""Takes the place of `test/service.py`, which kafka-python's source distribution leaves out.

Its fixtures import both names; with a broker of ours running they only ever make the first.
"""


class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


class SpawnedService:
    """kafka-python would start Apache Kafka with this one."""
