"""`python -m fakes.left_behind DIRECTORY COUNT`: embedded brokers, one after the other, as JSON.

What each leaves behind, and how long it takes to start and to stop, with a consumer that waits for
data. A process of its own: in one that runs other tests, sockets and threads come and go.
"""

import gc
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack

import confluent_kafka

from fakes.opened import open_files
from ottla import testing

_TIMEOUT_S = 30


def produce(address: str) -> None:
    """Write one record and wait until it is acknowledged."""
    problems: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce("any", "x", on_delivery=lambda error, _: problems.append(error))
    producer.flush(_TIMEOUT_S)
    assert problems == [None]


def waiting_consumer(address: str) -> confluent_kafka.Consumer:
    """A consumer that has read everything: its next fetch waits in the broker."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "any",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 200_000,
            "socket.timeout.ms": 300_000,
            "log_level": 0,  # it would say that the broker has gone
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("any", 0, 0)])
    message = consumer.poll(_TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    return consumer


def use_broker() -> dict[str, object]:
    """Start a broker, let a consumer wait for data, stop it; what was left, and the times."""
    threads, files = set(threading.enumerate()), open_files()
    with ExitStack() as stack:
        begun_s = time.perf_counter()
        address = stack.enter_context(testing.broker())
        started_s = time.perf_counter()
        produce(address)
        consumer = waiting_consumer(address)
        (directory,) = os.listdir(tempfile.gettempdir())
        during = os.listdir(os.path.join(tempfile.gettempdir(), directory))
        stopping_s = time.perf_counter()
    stopped_s = time.perf_counter()
    consumer.close()
    del consumer  # and with it librdkafka's threads and descriptors
    return {
        "during": during,
        "directories": os.listdir(tempfile.gettempdir()),
        "threads": [thread.name for thread in set(threading.enumerate()) - threads],
        "files": sorted(set(open_files().items()) - set(files.items())),
        "address": address,
        "start_ms": 1000 * (started_s - begun_s),
        "stop_ms": 1000 * (stopped_s - stopping_s),
    }


def main(directory: str, count: int) -> None:
    tempfile.tempdir = directory
    use_broker()  # what is loaded only once and then stays has been loaded
    gc.disable()  # nothing may need a search for cycles to go
    sys.stdout.write(json.dumps([use_broker() for _ in range(count)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
