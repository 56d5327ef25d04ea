"""`python -m bench.group_reader HOST:PORT GROUP TOPIC`: one member of a group in its own process.

Prints a line for each record: its partition and the monotonic time in nanoseconds. SIGTERM makes
it leave.
"""

import signal
import sys
import time

from confluent_kafka import Consumer

SESSION_MS = 6000
HEARTBEAT_MS = 200


def main(address: str, group: str, topic: str) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "latest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not told:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            print(message.partition(), time.monotonic_ns(), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
