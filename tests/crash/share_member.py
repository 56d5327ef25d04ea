"""A member of a share group in a process of its own: `share_member.py BOOTSTRAP GROUP TOPIC`.

Rejects the numbers that seven divides, accepts the others. Writes "got VALUE TIME" for each record
when it is there, and "accepted VALUE TIME" or "rejected VALUE TIME" once that is answered.
"""

import os
import signal
import sys
import time

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

REJECTED = 7


def say(kind: str, value: int) -> None:
    """Write a line in one call: a file takes it whole, also from a process that is killed."""
    os.write(sys.stdout.fileno(), f"{kind} {value} {time.monotonic()}\n".encode())


def take(consumer: ShareConsumer) -> list[Message]:
    """Records of a poll; an error of the cluster passes."""
    try:
        return [message for message in consumer.poll(0.5) if message.error() is None]
    except KafkaException:
        return []


def main(bootstrap: str, group: str, topic: str) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
        }
    )
    consumer.subscribe([topic])
    while not ending:
        taken: dict[tuple[str | None, int | None], list[int]] = {}
        for message in take(consumer):
            value = int(message.value() or b"")
            say("got", value)
            taken.setdefault((message.topic(), message.partition()), []).append(value)
            bad = value % REJECTED == 0
            consumer.acknowledge(message, AcknowledgeType.REJECT if bad else AcknowledgeType.ACCEPT)
        if not taken:
            continue
        try:
            results = consumer.commit_sync(30.0)
        except KafkaException:
            continue
        for partition, problem in results.items():
            if problem is None:
                for value in taken.get((partition.topic, partition.partition), ()):
                    say("accepted" if value % REJECTED else "rejected", value)
    consumer.close()


main(*sys.argv[1:])
