"""Find the place in a partition where a time begins, and read from there.

    python examples/seek_by_time.py [HOST:PORT]

Without an address it starts a broker of its own, in this process.
"""

import contextlib
import sys
from datetime import UTC, datetime, timedelta

import confluent_kafka

import ottla.testing


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def produce(address: str, topic: str, readings: dict[datetime, str]) -> None:
    """Write each reading with the time it was taken."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all"})
    for moment, value in readings.items():
        producer.produce(topic, value, partition=0, timestamp=milliseconds(moment))
    producer.flush()


def consume_since(address: str, topic: str, moment: datetime) -> list[str]:
    """Every record of partition 0 from the first one that is not older than `moment`."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "not used", "enable.auto.commit": False}
    )
    wanted = confluent_kafka.TopicPartition(topic, 0, milliseconds(moment))
    (place,) = consumer.offsets_for_times([wanted], timeout=30)  # place.offset is an offset now
    _, end_offset = consumer.get_watermark_offsets(place, timeout=30)
    print(f"{moment:%H:%M} begins at offset {place.offset} of {end_offset}")
    consumer.assign([place])
    values: list[str] = []
    while place.offset + len(values) < end_offset:
        values += [
            (message.value() or b"").decode() for message in consumer.consume(100, timeout=1)
        ]
    consumer.close()
    return values


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        noon = datetime.now(UTC).replace(hour=12, minute=0) - timedelta(days=1)
        readings = {noon + timedelta(hours=hour): f"reading {hour}" for hour in range(4)}
        topic = f"readings-{datetime.now(UTC):%H%M%S%f}"  # a topic of its own for each run
        produce(address, topic, readings)
        print("read", consume_since(address, topic, noon + timedelta(minutes=90)))


if __name__ == "__main__":
    main()
