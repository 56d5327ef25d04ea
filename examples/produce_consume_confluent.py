"""Write three records and read them back with confluent-kafka.

    python examples/produce_consume_confluent.py [HOST:PORT]

Without an address it starts a broker of its own, in this process.
"""

import contextlib
import sys

import confluent_kafka

import ottla.testing

TOPIC = "greetings"


def produce(address: str, values: list[str]) -> list[int]:
    """Write the values to partition 0 and wait until all are on disk; their offsets."""
    offsets: list[int] = []

    def delivered(
        error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        offset = message.offset()
        assert offset is not None, "a record that was delivered has an offset"
        offsets.append(offset)

    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    producer.flush()
    return offsets


def consume(address: str, first_offset: int, count: int) -> list[str]:
    """Read so many records of partition 0, from an offset on."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "not used",  # the library insists on a name
            "enable.auto.commit": False,  # this reader keeps its own place
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, first_offset)])
    values: list[str] = []
    while len(values) < count:
        for message in consumer.consume(count - len(values), timeout=1):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        offsets = produce(address, ["hello", "from", "confluent-kafka"])
        print(f"wrote {len(offsets)} records")
        print("read", *consume(address, offsets[0], len(offsets)))


if __name__ == "__main__":
    main()
