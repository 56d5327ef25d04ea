"""`python -m fakes.left_behind DIRECTORY`: what an embedded broker leaves behind, as JSON.

A process of its own: in one that runs other tests, sockets and threads come and go.
"""

import gc
import json
import os
import sys
import tempfile
import threading

import confluent_kafka

from ottla import testing

_TIMEOUT_S = 30


def produce(address: str) -> None:
    """Write one record and wait until it is acknowledged."""
    problems: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce("any", "x", on_delivery=lambda error, _: problems.append(error))
    producer.flush(_TIMEOUT_S)
    assert problems == [None]


def open_files() -> dict[str, str]:
    """Every descriptor of this process, and what is behind it."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor that lists the directory
    return found


def main(directory: str) -> None:
    tempfile.tempdir = directory
    with testing.broker() as address:
        produce(address)  # what is loaded only once and then stays has been loaded
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    with testing.broker() as address:
        during = [os.listdir(os.path.join(directory, name)) for name in os.listdir(directory)]
        produce(address)
    gc.collect()  # the files of logs are closed with the last reference to them
    left = {
        "during": during,
        "directories": os.listdir(directory),
        "threads": [thread.name for thread in set(threading.enumerate()) - threads],
        "files": sorted(set(open_files().items()) - set(files.items())),
        "address": address,
    }
    sys.stdout.write(json.dumps(left))


if __name__ == "__main__":
    main(sys.argv[1])
