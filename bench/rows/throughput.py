"""Produce and consume throughput of one client, and the server's CPU seconds per gigabyte."""

from bench.load import Job
from bench.measures import GB, Effort, Metric, Samples, SharedRow, new_topic, touch_pages
from bench.servers import Running

SIZES = {100: "100 B", 1000: "1 KB"}
PROFILES = {False: "default", True: "tuned"}


def _rate(verb: str, size_bytes: int, tuned: bool) -> Metric:
    return Metric(
        name=f"{verb}.{size_bytes}.{PROFILES[tuned]}",
        title=f"{verb} {SIZES[size_bytes]}, client {PROFILES[tuned]}",
        unit="msg/s",
        higher_is_better=True,
    )


def _cpu(verb: str, size_bytes: int) -> Metric:
    return Metric(
        name=f"{verb}.{size_bytes}.cpu",
        title=f"server CPU to {verb} {SIZES[size_bytes]}",
        unit="s/GB",
        higher_is_better=False,
    )


METRICS = (
    *(
        _rate(verb, size, tuned)
        for verb in ("produce", "consume")
        for size in SIZES
        for tuned in PROFILES
    ),
    *(_cpu(verb, size) for verb in ("produce", "consume") for size in SIZES),
)


def measure(running: Running, effort: Effort) -> Samples:
    """CPU is taken with the default client: what most users run."""
    for size_bytes in SIZES:
        for tuned in PROFILES:
            if running.load.tunable or not tuned:
                yield from _measure_case(running, effort, size_bytes, tuned)


def _measure_case(running: Running, effort: Effort, size_bytes: int, tuned: bool) -> Samples:
    count = effort.small_messages if size_bytes == 100 else effort.large_messages
    job = Job(size_bytes=size_bytes, count=count, seconds=effort.produce_s, tuned=tuned)
    touch_pages(count * size_bytes)
    with new_topic(running.load) as topic:
        before_s = running.cpu_s()
        produced = running.load.produce(topic, job)
        used_s = running.cpu_s() - before_s
        yield _rate("produce", size_bytes, tuned).name, produced.per_s
        if not tuned:
            yield _cpu("produce", size_bytes).name, used_s / (produced.messages * size_bytes / GB)

        job = Job(
            size_bytes=size_bytes, count=produced.messages, seconds=effort.consume_s, tuned=tuned
        )
        before_s = running.cpu_s()
        consumed = running.load.consume(topic, job)
        used_s = running.cpu_s() - before_s
        yield _rate("consume", size_bytes, tuned).name, consumed.per_s
        if not tuned:
            yield _cpu("consume", size_bytes).name, used_s / (consumed.messages * size_bytes / GB)


ROW = SharedRow("throughput", METRICS, measure)
