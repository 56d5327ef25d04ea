"""What waiting for the disk costs: 100 producers with one request in flight each."""

from bench.load import Job
from bench.measures import Effort, Metric, Samples, SharedRow, new_topic
from bench.servers import Running

PRODUCERS = 100
SIZE_BYTES = 1000

FSYNC = Metric(
    name="durability.fsync",
    title=f"{PRODUCERS} producers, 1 KB, fsync before the answer",
    unit="msg/s",
    higher_is_better=True,
)
PAGE_CACHE = Metric(
    name="durability.page_cache",
    title=f"{PRODUCERS} producers, 1 KB, answer from the page cache",
    unit="msg/s",
    higher_is_better=True,
)


def measure(running: Running, effort: Effort) -> Samples:
    """Ottla: durability=fsync against replicated. Kafka: flush.messages=1 against its default."""
    for metric in (FSYNC, PAGE_CACHE):
        with new_topic(running.load, fsync=metric is FSYNC) as topic:
            job = Job(size_bytes=SIZE_BYTES, seconds=effort.request_s)
            yield metric.name, running.load.request(topic, PRODUCERS, job).per_s


ROW = SharedRow("durability", (FSYNC, PAGE_CACHE), measure)
