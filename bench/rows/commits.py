"""What a consumer pays that commits every record and waits for it: one record a round trip."""

import itertools

from bench.kafka_load import KafkaLoad
from bench.load import Job, NotSupported
from bench.measures import Effort, Metric, Samples, SharedRow, new_topic
from bench.servers import Running

SIZE_BYTES = 100
RECORDS = 200_000  # more than anyone commits one by one in the time there is

PAGE_CACHE = Metric(
    name="commits.page_cache",
    title="one consumer commits each record, answer from the page cache",
    unit="rec/s",
    higher_is_better=True,
)
FSYNC = Metric(
    name="commits.fsync",
    title="one consumer commits each record, fsync before the answer",
    unit="rec/s",
    higher_is_better=True,
)
CPU = Metric(
    name="commits.cpu",
    title="server CPU per record that is fetched and committed, page cache",
    unit="us",
    higher_is_better=False,
)

_group_numbers = itertools.count(1)


def measure(running: Running, effort: Effort) -> Samples:
    """The groups' topic is set: Ottla's durability to replicated or fsync, Kafka's flush.messages.

    By default Ottla waits for the disk, and Kafka does not.
    """
    load = running.load
    if not isinstance(load, KafkaLoad):
        raise NotSupported("it has no consumer groups")
    with new_topic(load) as topic:
        load.produce(topic, Job(size_bytes=SIZE_BYTES, count=RECORDS, seconds=effort.produce_s))
        job = Job(size_bytes=SIZE_BYTES, count=RECORDS // 2, seconds=effort.commit_s)
        load.commit(topic, _new_group(), Job(size_bytes=SIZE_BYTES, count=10, seconds=1))
        try:
            for metric in (PAGE_CACHE, FSYNC):
                load.keep_commits(fsync=metric is FSYNC)
                before_s = running.cpu_s()
                committed = load.commit(topic, _new_group(), job)
                used_s = running.cpu_s() - before_s
                yield metric.name, committed.per_s
                if metric is PAGE_CACHE:
                    yield CPU.name, used_s * 1e6 / committed.messages
        finally:
            load.keep_commits(fsync=False)


def _new_group() -> str:
    return f"bench-commits-{next(_group_numbers)}"


ROW = SharedRow("commits", (PAGE_CACHE, CPU, FSYNC), measure)
