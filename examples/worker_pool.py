"""A pool of workers with long jobs: failures come again, hopeless ones go aside.

    python examples/worker_pool.py [HOST:PORT]

A job may take longer than a record's lock: its lease is renewed while its handler runs, also while
the broker restarts. One that fails is tried again a moment later, and one that cannot be read is
rejected. Without an address it starts a broker of its own, in this process.
"""

import contextlib
import json
import sys
import threading

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

import ottla
import ottla.testing

TOPIC = "videos"
JOBS = [{"video": number, "minutes": number % 3} for number in range(6)]


def create_topic(address: str) -> None:
    """Make the topic, unless it is there."""
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(TOPIC, num_partitions=2)]).values():
        try:
            made.result()
        except confluent_kafka.KafkaException as problem:
            if problem.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def work(address: str) -> None:
    """Put jobs into the queue and have four threads do them."""
    stop, lock = threading.Event(), threading.Lock()
    ends: dict[str, int] = {"converted": 0, "tried again": 0, "rejected": 0}

    def end(how: str) -> None:
        with lock:
            ends[how] += 1
            if ends["converted"] + ends["rejected"] == len(JOBS) + 1:
                stop.set()  # what is still held is finished

    def convert(message: ottla.Message) -> None:
        try:
            job = json.loads(message.value or b"")
        except ValueError:
            message.reject("not JSON")  # delivered no more
            end("rejected")
            return
        if job["video"] == 3 and message.deliveries == 1:
            end("tried again")
            message.nack(delay=0.2)
            return
        threading.Event().wait(job["minutes"] / 100)  # the work itself
        end("converted")

    with ottla.Queue(TOPIC, servers=address) as queue:
        for job in JOBS:
            queue.put(json.dumps(job), headers={"kind": "convert"})
        queue.put("a job that is no JSON")
        queue.work(convert, concurrency=4, stop=stop)
    for how, count in ends.items():
        print(f"{count} {how}")


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = sys.argv[1] if sys.argv[1:] else stack.enter_context(ottla.testing.broker())
        create_topic(address)
        work(address)


if __name__ == "__main__":
    main()
