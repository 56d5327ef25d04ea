"""From spawning the process to the first acknowledged message."""

import time
from pathlib import Path

from bench.measures import Effort, FreshRow, Metric, Samples
from bench.servers import READY_S, Server, running, spawned

TOPIC = "bench-start"
START = Metric(
    name="start.first_ack",
    title="start to first acknowledged message",
    unit="s",
    higher_is_better=False,
)


def measure(server: Server, effort: Effort, workspace: Path) -> Samples:
    """On a data directory that holds one topic and was closed properly: an ordinary restart."""
    data = workspace / server.name
    if not data.exists():
        with running(server, data) as instance:
            instance.load.create(TOPIC)
            instance.load.first_ack(TOPIC, time.monotonic() + READY_S)
    with spawned(server, data) as instance:
        instance.load.first_ack(TOPIC, time.monotonic() + READY_S)
        yield START.name, time.monotonic() - instance.spawned_s


ROW = FreshRow("start", (START,), measure, rounds_max=5)
