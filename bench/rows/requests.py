"""One message per request, one request in flight on each of 64 connections."""

from bench.load import Job
from bench.measures import Effort, Metric, Samples, SharedRow, new_topic
from bench.servers import Running

CONNECTIONS = 64
SIZE_BYTES = 100

RATE = Metric(
    name="requests.rate",
    title=f"one-record produce requests, {CONNECTIONS} connections",
    unit="req/s",
    higher_is_better=True,
)
CPU = Metric(
    name="requests.cpu",
    title="server CPU per one-record request",
    unit="us",
    higher_is_better=False,
)


def measure(running: Running, effort: Effort) -> Samples:
    job = Job(size_bytes=SIZE_BYTES, seconds=effort.request_s)
    with new_topic(running.load) as topic:
        before_s = running.cpu_s()
        answered = running.load.request(topic, CONNECTIONS, job)
        used_s = running.cpu_s() - before_s
        yield RATE.name, answered.per_s
        yield CPU.name, used_s * 1e6 / answered.messages


ROW = SharedRow("requests", (RATE, CPU), measure)
