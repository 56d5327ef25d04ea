"""A process that is a broker and its only client, and dies at the n-th change of its disk.

Run as a program: DIRECTORY N. Every step that was acknowledged is a line on standard output; the
last line, if it gets that far, is the number of changes there were.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fakes.doomed_files import DoomedFiles
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.client import admin
from ottla.client.client import Client
from ottla.client.configs import alter_settings, topic_resource
from ottla.client.partitions import produce
from ottla.config import BrokerConfig
from ottla.model import Endpoint, TimestampMs, TopicPartition
from ottla.records.batch import Record, build_batch

TOPIC: Final = "t"
RETENTION_BYTES: Final = 6000
STEPS: Final = (
    "create",
    *("produce",) * 12,  # 500 bytes each into segments of 2,000
    "grow",
    *("produce",) * 6,
    "configure",  # from here on retention takes segments
    *("produce",) * 6,
    "delete",
    "create",
    "produce",
)
_TIMEOUT_S: Final = 30


async def walk(data: Path, files: DoomedFiles) -> None:
    """Take every step, one after the other."""
    config = BrokerConfig.parse(
        {
            "log.retention.check.interval.ms": "10",
            "log.flush.offset.checkpoint.interval.ms": "100",
        }
    )
    options = ServeOptions(data=data, listen=Endpoint("127.0.0.1", 0), config=config)
    broker = await Broker.start(options, Environment(files=files))
    async with Client([broker.address], timeout_s=_TIMEOUT_S) as client:
        steps: dict[str, Callable[[int], Awaitable[object]]] = {
            "create": lambda _: admin.create_topic(
                client, TOPIC, partitions=1, settings={"segment.bytes": "2000"}
            ),
            "produce": lambda number: produce(client, TopicPartition(TOPIC, 0), _batch(number)),
            "grow": lambda _: admin.grow_topic(client, TOPIC, 3),
            "configure": lambda _: alter_settings(
                client,
                topic_resource(TOPIC),
                assign={"retention.bytes": str(RETENTION_BYTES)},
                remove=(),
            ),
            "delete": lambda _: admin.delete_topic(client, TOPIC),
        }
        for number, name in enumerate(STEPS):
            await steps[name](number)
            os.write(sys.stdout.fileno(), f"{name}\n".encode())
    await broker.stop()
    os.write(sys.stdout.fileno(), f"{files.count}\n".encode())


def _batch(number: int) -> bytearray:
    value = f"{number} ".encode() + bytes(430)
    return build_batch([Record(timestamp_ms=TimestampMs(-1), key=b"doomed", value=value)])


if __name__ == "__main__":
    asyncio.run(walk(Path(sys.argv[1]), DoomedFiles(int(sys.argv[2]))))
