"""A topic of a test, and what can be done to it."""

from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

PATIENCE_S = 60


class Topic:
    """One topic, and what can be done to it."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": address})

    def options(self, **more: str) -> dict[str, str]:
        """What a reader of it is told; `__` stands for a dot."""
        named = {name.replace("__", "."): value for name, value in more.items()}
        return {"kafka.bootstrap.servers": self.address, "subscribe": self.name} | named

    def create(self, partitions: int = 1) -> None:
        # Records of tests are from 1970: no retention may find them too old.
        new = NewTopic(self.name, num_partitions=partitions, config={"retention.ms": "-1"})
        self.admin.create_topics([new])[self.name].result(PATIENCE_S)

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(
            PATIENCE_S
        )

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(PATIENCE_S)

    def cut(self, before: int, partition: int = 0) -> None:
        """Remove every record before an offset."""
        edge = TopicPartition(self.name, partition, before)
        next(iter(self.admin.delete_records([edge]).values())).result(PATIENCE_S)

    def put(self, value: str, *, time_ms: int) -> None:
        """Write one record with a time of its own."""
        producer = Producer({"bootstrap.servers": self.address})
        producer.produce(self.name, value=value.encode(), timestamp=time_ms)
        assert producer.flush(PATIENCE_S) == 0

    def fill(
        self,
        values: "range | list[str]",
        *,
        partition: int = 0,
        codec: str = "none",
        **more: Any,
    ) -> None:
        """Write one record for each value, with times 1000, 1001 and so on."""
        producer = Producer(
            {"bootstrap.servers": self.address, "compression.type": codec, "linger.ms": 5}
        )
        for number, value in enumerate(values):
            producer.produce(
                self.name,
                value=str(value).encode(),
                partition=partition,
                timestamp=1000 + number,
                **more,
            )
        assert producer.flush(PATIENCE_S) == 0
