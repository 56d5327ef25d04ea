"""Producer to consumer at a steady rate, alone and beside a writer that takes all it can get."""

from bench.load import Job
from bench.measures import Effort, Metric, Samples, SharedRow, new_topic
from bench.servers import Running

SIZE_BYTES = 100
BULK_SIZE_BYTES = 1000
RATES = (1_000, 10_000)


def _metric(percentile: str, case: str, title: str) -> Metric:
    return Metric(
        name=f"latency.{percentile}.{case}",
        title=f"end to end {percentile}, {title}",
        unit="ms",
        higher_is_better=False,
    )


METRICS = (
    *(_metric(p, str(rate), f"{rate:,} msg/s") for rate in RATES for p in ("p50", "p99")),
    _metric("p99", "beside", "1,000 msg/s beside a bulk writer"),
)


def measure(running: Running, effort: Effort) -> Samples:
    job = Job(size_bytes=SIZE_BYTES, seconds=effort.latency_s)
    for rate in RATES:
        with new_topic(running.load) as topic:
            alone = running.load.latency(topic, rate, job)
            yield f"latency.p50.{rate}", alone.p50_ms
            yield f"latency.p99.{rate}", alone.p99_ms
    bulk = Job(size_bytes=BULK_SIZE_BYTES, seconds=effort.latency_s + 60)
    with new_topic(running.load) as topic, new_topic(running.load) as bulk_topic:
        with running.load.producing(bulk_topic, bulk):
            beside = running.load.latency(topic, RATES[0], job)
        yield "latency.p99.beside", beside.p99_ms


ROW = SharedRow("latency", METRICS, measure)
