"""Share a topic's partitions among the members of a group, and go on where the group stopped.

python examples/consumer_group.py [HOST:PORT]
"""

import contextlib
import sys
import uuid

import confluent_kafka

import ottla.testing

COUNT = 10


def produce(address: str, topic: str, first: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(first, first + COUNT):
        producer.produce(topic, str(number))
    producer.flush()


def consume(address: str, topic: str, group: str) -> list[int]:
    """What a member of the group is given; the commit makes it the group's for good."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    got: list[int] = []
    try:
        while len(got) < COUNT:
            message = consumer.poll(60)
            if message is None:
                raise SystemExit("no records within a minute")
            if message.error() is None:
                got.append(int(message.value() or b""))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(got)


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        topic = group = f"counted-{uuid.uuid1()}"
        produce(address, topic, 0)
        first = consume(address, topic, group)
        print(f"the first member read {first[0]} to {first[-1]} and left")
        produce(address, topic, COUNT)
        second = consume(address, topic, group)
        print(f"the next one went on with {second[0]} to {second[-1]}")


if __name__ == "__main__":
    main()
