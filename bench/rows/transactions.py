"""Transactions of one producer, one after the other, and reading what they committed."""

from bench.load import Job
from bench.measures import Effort, Metric, Samples, SharedRow, new_topic
from bench.servers import Running

SIZE_BYTES = 100
RECORDS = {1: "1 record", 10: "10 records", 100: "100 records"}
COMMIT_RECORDS = 10  # a commit's time is told for transactions of this size


def _rate(records: int) -> Metric:
    return Metric(
        name=f"transactions.{records}",
        title=f"transactions of {RECORDS[records]}",
        unit="/s",
        higher_is_better=True,
    )


def _commit(percentile: str) -> Metric:
    return Metric(
        name=f"transactions.commit.{percentile}",
        title=f"commit of a transaction, {percentile}",
        unit="ms",
        higher_is_better=False,
    )


CONSUME = Metric(
    name="transactions.consume",
    title="consume 100 B committed in transactions of 100",
    unit="msg/s",
    higher_is_better=True,
)
METRICS = (*map(_rate, RECORDS), _commit("p50"), _commit("p99"), CONSUME)


def measure(running: Running, effort: Effort) -> Samples:
    job = Job(size_bytes=SIZE_BYTES, seconds=effort.request_s)
    for records in RECORDS:
        with new_topic(running.load) as topic:
            done = running.load.transact(topic, records, job)
            yield _rate(records).name, done.transactions.per_s
            if records == COMMIT_RECORDS:
                yield _commit("p50").name, done.commit.p50_ms
                yield _commit("p99").name, done.commit.p99_ms
            if records == max(RECORDS):
                yield CONSUME.name, _consume(running, topic, effort, done.transactions.messages)


def _consume(running: Running, topic: str, effort: Effort, transactions: int) -> float:
    """librdkafka reads only what is committed unless it is told otherwise."""
    count = transactions * max(RECORDS)
    job = Job(size_bytes=SIZE_BYTES, count=count, seconds=effort.consume_s)
    return running.load.consume(topic, job).per_s


ROW = SharedRow("transactions", METRICS, measure)
