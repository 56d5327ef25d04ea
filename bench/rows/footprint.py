"""A server that has just been started: how soon it answers, and how much memory it takes."""

import time
from contextlib import ExitStack
from pathlib import Path

from bench.load import Job
from bench.measures import Effort, FreshRow, Metric, Samples, new_topic
from bench.servers import READY_S, Running, Server, running, spawned, wait_answer

TOPIC = "bench-start"
SIZE_BYTES = 1000
GIGABYTE_MESSAGES = 1_000_000


def _metric(name: str, title: str, unit: str) -> Metric:
    return Metric(name=f"footprint.{name}", title=title, unit=unit, higher_is_better=False)


START = _metric("start", "start to first acknowledged message", "s")
IDLE = _metric("idle", "memory, idle", "MB")
CONNECTION = _metric("connection", "memory per idle connection (of 2,000)", "KB")
LOADED = _metric("loaded", "memory after 1 GB produced", "MB")


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
        wait_answer(instance, data)
        time.sleep(effort.settle_s)
        yield IDLE.name, instance.rss_bytes() / 1e6
        yield CONNECTION.name, _per_connection_bytes(instance, effort) / 1e3
        yield from _after_a_gigabyte(instance, effort)


def _per_connection_bytes(instance: Running, effort: Effort) -> float:
    before_bytes = instance.rss_bytes()
    with ExitStack() as connections:
        for _ in range(effort.idle_connections):
            connections.enter_context(instance.load.connect())
        time.sleep(effort.settle_s)
        return (instance.rss_bytes() - before_bytes) / effort.idle_connections


def _after_a_gigabyte(instance: Running, effort: Effort) -> Samples:
    """Nothing if the server is too slow to take a gigabyte in the time a run allows."""
    job = Job(size_bytes=SIZE_BYTES, count=GIGABYTE_MESSAGES, seconds=effort.gigabyte_s)
    with new_topic(instance.load) as topic:
        if instance.load.produce(topic, job).messages >= GIGABYTE_MESSAGES:
            yield LOADED.name, instance.rss_bytes() / 1e6


ROW = FreshRow("footprint", (START, IDLE, CONNECTION, LOADED), measure)
