"""One run: all servers up, then round after round, row after row, one server after the other."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from bench import processes
from bench.load import Job, LoadFailed, NotSupported
from bench.measures import Effort, FreshRow, Row, Samples, SharedRow, new_topic
from bench.results import Results, Sample
from bench.servers import Running, Server, running

WARM_UP_CONNECTIONS = 64
INTERVAL_MIN_S = 0.05


class Run:
    """Owns the running servers and the results while a run lasts."""

    def __init__(self, results: Results, effort: Effort, workspace: Path) -> None:
        self.results = results
        self.effort = effort
        self.workspace = workspace
        self.started_s = time.monotonic()
        self.instances: dict[str, Running] = {}

    def measure(self, servers: Sequence[Server], rows: Sequence[Row]) -> None:
        """A B, B A: within a round every server answers a row before the next row begins.

        Every second round in the other order: who comes first can find a colder disk.
        """
        with ExitStack() as up:
            if any(isinstance(row, SharedRow) for row in rows):
                for server in servers:
                    self._start(server, up)
            for number in range(1, self.results.rounds + 1):
                in_turn = servers if number % 2 else servers[::-1]
                for row in rows:
                    for server in in_turn:
                        self._measure_row(number, row, server)
            self.say("stopping the servers")

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.started_s), 60)
        print(f"[{minutes:02d}:{seconds:02d}] {text}", flush=True)

    def _start(self, server: Server, up: ExitStack) -> None:
        self.say(f"starting and warming up {server.title} {server.version}")
        try:
            instance = up.enter_context(running(server, self.workspace / "shared" / server.name))
            _warm_up(instance, self.effort)
            self.instances[server.name] = instance
        except (LoadFailed, OSError) as problem:
            self._fail(f"{server.title}: {problem}")

    def _measure_row(self, number: int, row: Row, server: Server) -> None:
        label = f"round {number}/{self.results.rounds}  {row.name:<11} {server.title}"
        begun_s = time.monotonic()
        os.sync()  # nobody pays for the pages that the one before left dirty
        try:
            with closing(self._samples(row, server)) as samples:  # stops what it started
                for metric, sample in with_noise(samples):
                    self.results.add(metric, server.name, sample)
        except NotSupported as reason:
            self.say(f"{label}: not measured: {reason}")
            return
        except (LoadFailed, OSError) as problem:
            self._fail(f"{label}: {problem}")
            return
        self.say(f"{label} ({time.monotonic() - begun_s:.1f} s)")

    def _samples(self, row: Row, server: Server) -> Samples:
        match row:
            case FreshRow():
                return row.measure(server, self.effort, self.workspace / row.name)
            case SharedRow():
                if server.name not in self.instances:
                    raise NotSupported("it did not start")
                return row.measure(self.instances[server.name], self.effort)

    def _fail(self, text: str) -> None:
        self.results.failures.append(text)
        self.say(f"FAILED {text}")


def _warm_up(instance: Running, effort: Effort) -> None:
    """Every path once, long enough for a just-in-time compiler to have seen it."""
    job = Job(size_bytes=100, seconds=effort.warm_up_s)
    with new_topic(instance.load) as topic:
        produced = instance.load.produce(topic, job)
        read = Job(size_bytes=100, seconds=effort.warm_up_s, count=produced.messages)
        instance.load.consume(topic, read)
        instance.load.request(topic, WARM_UP_CONNECTIONS, job)


def with_noise(samples: Samples) -> Iterator[tuple[str, Sample]]:
    """Each value with the cores that other processes used since the value before."""
    foreign_cores, before = 0.0, _clocks()
    for metric, value in samples:
        now = _clocks()
        wall_s, machine_s, own_s = (late - early for late, early in zip(now, before, strict=True))
        if wall_s > INTERVAL_MIN_S:  # else two values of one measurement: they share the noise
            foreign_cores, before = max(0.0, (machine_s - own_s) / wall_s), now
        yield metric, Sample(value, round(foreign_cores, 2))


def _clocks() -> tuple[float, float, float]:
    return time.monotonic(), processes.machine_cpu_s(), processes.cpu_s(os.getpid())
