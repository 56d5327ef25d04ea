"""Write three records and read them back with kafka-python.

    python examples/produce_consume_kafka_python.py [HOST:PORT]

Without an address it starts a broker of its own, in this process.
"""

import contextlib
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

import ottla.testing

TOPIC = "greetings"


def produce(address: str, values: list[str]) -> list[int]:
    """Write the values to partition 0 and wait until all are on disk; their offsets."""
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    sent = [producer.send(TOPIC, value.encode(), partition=0) for value in values]
    offsets = [record.get(timeout=30).offset for record in sent]
    producer.close()
    return offsets


def consume(address: str, first_offset: int, count: int) -> list[str]:
    """Read so many records of partition 0, from an offset on."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None)
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, first_offset)
    values = [next(consumer).value.decode() for _ in range(count)]
    consumer.close()
    return values


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        offsets = produce(address, ["hello", "from", "kafka-python"])
        print(f"wrote {len(offsets)} records")
        print("read", *consume(address, offsets[0], len(offsets)))


if __name__ == "__main__":
    main()
