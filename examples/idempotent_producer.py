"""Write a thousand records with an idempotent producer: each is in the log once, and in order.

    python examples/idempotent_producer.py [HOST:PORT]

The producer numbers its batches. When an answer is lost and it sends a batch again, the broker
knows the number and answers with the offset of the first copy instead of writing a second one.
Without an address it starts a broker of its own, in this process.
"""

import contextlib
import sys

import confluent_kafka

import ottla.testing

TOPIC = "payments"
COUNT = 1000


def produce(address: str, values: list[str]) -> list[int]:
    """Write the values and wait until all are on disk; their offsets."""
    offsets: list[int] = []

    def delivered(
        error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        offset = message.offset()
        assert offset is not None, "a record that was delivered has an offset"
        offsets.append(offset)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,  # implies acks=all and at most 5 requests in flight
            "compression.type": "zstd",
        }
    )
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    producer.flush()
    return offsets


def consume(address: str, first_offset: int, end_offset: int) -> list[str]:
    """Read partition 0 between two offsets."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "not used", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, first_offset)])
    values: list[str] = []
    while first_offset + len(values) < end_offset:
        for message in consumer.consume(COUNT, timeout=1):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        values = [f"payment {number}" for number in range(COUNT)]
        offsets = produce(address, values)
        print(f"wrote {len(offsets)} records")
        found = consume(address, offsets[0], offsets[-1] + 1)
        print(f"read {len(found)} records")
        if found != values:
            sys.exit("what was read is not what was written")
        print("once each, and in order")


if __name__ == "__main__":
    main()
