"""A share consumer in a process of its own: `share_process.py ADDRESS GROUP TOPIC [REJECTED]`.

REJECTED is the divisor of numbers that it rejects. Prints "got VALUE" for each record before it
acknowledges it, and "done VALUE" once that is committed, both with the time: when it was got, and
when it was acknowledged. SIGTERM makes it close, SIGKILL does what it always does.
"""

import os
import signal
import sys
import time

from confluent_kafka import AcknowledgeType, ShareConsumer


def say(kind: str, value: str, at_s: float) -> None:
    """Write a line in one call: a pipe takes it whole, also from a process that is killed."""
    os.write(sys.stdout.fileno(), f"{kind} {value} {at_s}\n".encode())


def main(address: str, group: str, topic: str, rejected: str = "0") -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    consumer = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
        }
    )
    consumer.subscribe([topic])
    while not ending:
        values: list[str] = []
        times: list[float] = []
        for message in consumer.poll(0.5):
            assert message.error() is None, message.error()
            values.append((message.value() or b"").decode())
            say("got", values[-1], time.monotonic())
            times.append(time.monotonic())
            divisor = int(rejected)
            is_bad = divisor and int(values[-1]) % divisor == 0
            consumer.acknowledge(
                message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT
            )
        if values and not any((consumer.commit_sync(30.0)).values()):
            for value, acknowledged_s in zip(values, times, strict=True):
                say("done", value, acknowledged_s)
    consumer.close()


main(*sys.argv[1:])
