"""A worker in a process of its own: `queue_process.py ADDRESS TOPIC CONCURRENCY`.

Prints "got VALUE DELIVERIES" for each message and holds it for ever.
"""

import os
import sys
import threading

import ottla


def main(address: str, topic: str, concurrency: str) -> None:
    def handler(message: ottla.Message) -> None:
        text = (message.value or b"").decode()
        os.write(sys.stdout.fileno(), f"got {text} {message.deliveries}\n".encode())
        threading.Event().wait()

    with ottla.Queue(topic, servers=address) as queue:
        queue.work(handler, concurrency=int(concurrency))


main(*sys.argv[1:])
