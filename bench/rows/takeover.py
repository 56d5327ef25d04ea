"""How long partitions are left alone when the member that read them leaves, or is killed."""

import itertools
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from confluent_kafka import Producer

from bench.group_reader import HEARTBEAT_MS, SESSION_MS
from bench.kafka_load import KafkaLoad
from bench.load import LoadFailed, NotSupported
from bench.measures import Effort, Metric, Samples, SharedRow, new_kafka_topic
from bench.servers import Running

PARTITIONS = 4
PATIENCE_S = 60.0
LOOK_S = 0.005


def _metric(name: str, title: str) -> Metric:
    return Metric(
        name=f"takeover.{name}",
        title=f"{title} to its partitions being read again",
        unit="s",
        higher_is_better=False,
    )


LEAVE = _metric("leave", f"a member leaves (heartbeats every {HEARTBEAT_MS} ms)")
KILL = _metric("kill", f"a member is killed (session {SESSION_MS // 1000} s)")

_groups = itertools.count(1)


def measure(running: Running, effort: Effort) -> Samples:
    load = running.load
    if not isinstance(load, KafkaLoad):
        raise NotSupported("it has no consumer groups")
    with new_kafka_topic(load, partitions=PARTITIONS) as topic, _trickle(load.address, topic):
        for metric, signum in ((LEAVE, signal.SIGTERM), (KILL, signal.SIGKILL)):
            taken_s = [_takeover_s(load.address, topic, signum) for _ in range(effort.takeovers)]
            yield metric.name, statistics.median(taken_s)


def _takeover_s(address: str, topic: str, signum: signal.Signals) -> float:
    """From the signal until every partition has been read by the member that stays."""
    group = f"bench-takeover-{next(_groups)}"
    with _Reader(address, group, topic) as goes, _Reader(address, group, topic) as stays:
        _wait(lambda: bool(goes.last_ns) and bool(stays.last_ns), "both read")
        mark_ns = time.monotonic_ns()
        _wait(
            lambda: (
                _fresh(goes, mark_ns) | _fresh(stays, mark_ns) == set(range(PARTITIONS))
                and not _fresh(goes, mark_ns) & _fresh(stays, mark_ns)
            ),
            "they share the partitions",
        )
        left = _fresh(goes, mark_ns)
        at_ns = time.monotonic_ns()
        goes.process.send_signal(signum)
        _wait(lambda: left <= stays.taken_since(at_ns).keys(), "the other takes over")
        taken = stays.taken_since(at_ns)
        return (max(taken[partition] for partition in left) - at_ns) / 1e9


def _fresh(reader: "_Reader", since_ns: int) -> set[int]:
    return {partition for partition, at_ns in reader.last_ns.items() if at_ns > since_ns}


class _Reader:
    """A member in a process of its own, and when it last and first read each partition."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.group_reader", address, group, topic],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.last_ns: dict[int, int] = {}
        self._reads: list[tuple[int, int]] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def taken_since(self, at_ns: int) -> dict[int, int]:
        """When it first read each partition after a moment."""
        taken: dict[int, int] = {}
        for partition, read_ns in list(self._reads):
            if read_ns > at_ns:
                taken.setdefault(partition, read_ns)
        return taken

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # it was killed in the middle of its last word
            partition, read_ns = map(int, line.split())
            self._reads.append((partition, read_ns))
            self.last_ns[partition] = read_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _wait(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"{what}: not in {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)


@contextmanager
def _trickle(address: str, topic: str) -> Iterator[None]:
    """A record into each partition a hundred times a second."""
    over = threading.Event()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})

    def run() -> None:
        while not over.is_set():
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x", partition=partition)
            producer.poll(0.01)
        producer.flush(10)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


ROW = SharedRow("takeover", (LEAVE, KILL), measure)
