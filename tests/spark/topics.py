"""A topic of a test."""

import time
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from fakes.consumed import position_of, value_of

TIMEOUT_S = 60
JUDGE_TIMEOUT_S = 120


class Topic:
    """Creates, fills, changes and reads a topic with librdkafka."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": address})

    def options(self, **more: str) -> dict[str, str]:
        """Options for a reader of the topic; `__` in a name stands for a dot."""
        named = {name.replace("__", "."): value for name, value in more.items()}
        return {"kafka.bootstrap.servers": self.address, "subscribe": self.name} | named

    def create(self, partitions: int = 1) -> None:
        # Records of tests are from 1970: no retention may find them too old.
        new = NewTopic(self.name, num_partitions=partitions, config={"retention.ms": "-1"})
        self.admin.create_topics([new])[self.name].result(TIMEOUT_S)

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(
            TIMEOUT_S
        )

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(TIMEOUT_S)

    def cut(self, before: int, partition: int = 0) -> None:
        """Remove every record before an offset."""
        edge = TopicPartition(self.name, partition, before)
        next(iter(self.admin.delete_records([edge]).values())).result(TIMEOUT_S)

    def put(self, value: str, *, time_ms: int) -> None:
        """Write one record with a timestamp."""
        producer = Producer({"bootstrap.servers": self.address})
        producer.produce(self.name, value=value.encode(), timestamp=time_ms)
        assert producer.flush(TIMEOUT_S) == 0

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
            {
                "bootstrap.servers": self.address,
                "compression.type": codec,
                "linger.ms": 5,
                "queue.buffering.max.messages": 0,  # as many as there are
            }
        )
        for number, value in enumerate(values):
            producer.produce(
                self.name,
                value=str(value).encode(),
                partition=partition,
                timestamp=1000 + number,
                **more,
            )
        assert producer.flush(TIMEOUT_S) == 0

    def ends(self) -> dict[int, int]:
        """The end offset of every partition, uncommitted records included."""
        described = self.admin.list_topics(self.name, timeout=TIMEOUT_S).topics[self.name]
        wanted = {
            TopicPartition(self.name, partition): OffsetSpec.latest()
            for partition in described.partitions
        }
        found = self.admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TIMEOUT_S
        )
        return {tp.partition: end.result(TIMEOUT_S).offset for tp, end in found.items()}

    def committed(self) -> list[str]:
        """Every committed value of all partitions, read by librdkafka.

        Reads to the ends, so a transaction that stays open is an error.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"judge-{self.name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        left = {partition: end for partition, end in self.ends().items() if end}
        consumer.assign([TopicPartition(self.name, partition, 0) for partition in left])
        give_up_s = time.monotonic() + JUDGE_TIMEOUT_S
        values = list[str]()
        while left:
            assert time.monotonic() < give_up_s, f"not read to the ends {left} of {self.name}"
            for message in consumer.consume(10_000, timeout=1):
                error = message.error()
                if error is None:
                    values.append(value_of(message).decode())
                    give_up_s = time.monotonic() + JUDGE_TIMEOUT_S
                elif error.code() == KafkaError._PARTITION_EOF:
                    _, partition, offset = position_of(message)
                    if offset >= left.get(partition, 0):
                        left.pop(partition, None)
                else:
                    raise AssertionError(error)
        consumer.close()
        return values
