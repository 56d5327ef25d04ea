"""Resident memory of a fresh server: idle, per idle connection, and after a gigabyte."""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from bench.load import Job
from bench.measures import Effort, FreshRow, Metric, Samples, new_topic
from bench.servers import READY_S, Running, Server, running

MB = 1e6
SIZE_BYTES = 1000
GIGABYTE_MESSAGES = 1_000_000


def _metric(name: str, title: str, unit: str) -> Metric:
    return Metric(name=f"memory.{name}", title=title, unit=unit, higher_is_better=False)


IDLE = _metric("idle", "memory, idle", "MB")
CONNECTION = _metric("connection", "memory per idle connection (of 2,000)", "KB")
LOADED = _metric("loaded", "memory after 1 GB produced", "MB")


def measure(server: Server, effort: Effort, workspace: Path) -> Samples:
    data = workspace / server.name
    with running(server, data) as instance, new_topic(instance.load) as topic:
        instance.load.first_ack(topic, time.monotonic() + READY_S)
        time.sleep(effort.settle_s)
        yield IDLE.name, instance.rss_bytes() / MB
        yield CONNECTION.name, _per_connection_bytes(instance, effort) / 1e3
        job = Job(size_bytes=SIZE_BYTES, count=GIGABYTE_MESSAGES, seconds=effort.memory_s)
        if instance.load.produce(topic, job).messages >= GIGABYTE_MESSAGES:
            yield LOADED.name, instance.rss_bytes() / MB
    shutil.rmtree(data, ignore_errors=True)


def _per_connection_bytes(instance: Running, effort: Effort) -> float:
    before_bytes = instance.rss_bytes()
    with ExitStack() as connections:
        for _ in range(effort.idle_connections):
            connections.enter_context(instance.load.connect())
        time.sleep(effort.settle_s)
        return (instance.rss_bytes() - before_bytes) / effort.idle_connections


ROW = FreshRow("memory", (IDLE, CONNECTION, LOADED), measure, rounds_max=3)
