"""A stream on a real Spark, parts of which are killed, writes every record exactly once.

Topics are verified by librdkafka, which reads committed records only, and Delta tables by
deltalake.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from crash.processes import BrokerProcess
from spark.driver_process import DriverProcess
from spark.topics import Topic

RUN_TIMEOUT_S = 900  # a machine with far more to do than cores takes minutes for a batch
RECORDS = int(os.environ.get("OTTLA_SPARK_CHAOS_RECORDS", "4000"))
SINKS = ("topic", "table") if "OTTLA_SPARK_CHAOS_RECORDS" in os.environ else ("topic",)
SEED = int(os.environ.get("OTTLA_SPARK_CHAOS_SEED", "1"))
ROUNDS_MAX = 200

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(3600)]
START = Callable[..., DriverProcess]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", log_file=tmp_path / "broker.log")
    process.start()
    yield process
    process.end()


@pytest.fixture
def start(broker: BrokerProcess, tmp_path: Path) -> Iterator[START]:
    """Starts drivers that go on from one checkpoint."""
    started = list[DriverProcess]()

    def begin(rows: int, **more: object) -> DriverProcess:
        driver = DriverProcess(
            tmp_path / "driver.log",
            **{"address": broker.address, "source": "in", "target": "out", "rows": rows, **more},
            home=str(tmp_path),
        )
        started.append(driver)
        driver.wait_ready()
        return driver

    yield begin
    for driver in started:
        driver.end()


def filled(broker: BrokerProcess, records: int) -> Topic:
    """A topic of three partitions with a number in every record, and an empty one to copy it to."""
    source, target = Topic(broker.address, "in"), Topic(broker.address, "out")
    source.create(3)
    target.create(4)
    for partition in range(3):
        source.fill(range(partition, records, 3), partition=partition)
    return target


def end_of(driver: DriverProcess) -> int:
    """The exit status of a driver that ended by itself or by SIGKILL."""
    status = driver.wait(RUN_TIMEOUT_S)
    assert status is not None, f"not done in {RUN_TIMEOUT_S} s: {driver.said()}"
    assert status in (0, -signal.SIGKILL), driver.said()
    return status


@pytest.mark.parametrize(
    "point",
    [
        "half ended",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("written", "decided", "ended")),
    ],
)
def test_a_driver_killed_in_its_commit_other_tasks_and_failing_ones_double_nothing(
    broker: BrokerProcess, start: START, tmp_path: Path, point: str
) -> None:
    target, numbers = filled(broker, 60), Topic(broker.address, "numbers")
    numbers.create(2)
    assert end_of(start(rows=20, commit_is_fatal=1, fatal_point=point, tasks=4)) == -signal.SIGKILL
    assert (tmp_path / "checkpoint" / "offsets" / "1").exists()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    # From here on every task fails at first: half of them when they have written.
    again = start(
        rows=20,
        master="local[4,4]",  # a larger cluster
        tasks=3,
        tasks_fail=True,
        batch_target=numbers.name,
        batch_rows=50,
    )
    assert end_of(again) == 0
    assert sorted(map(int, target.committed())) == list(range(60))
    assert sorted(map(int, numbers.committed())) == list(range(50))


class Table:
    """A Delta table with the interface of `Topic` that this test needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ends(self) -> dict[int, int]:
        """The number of commits."""
        return {0: len(list(self.path.glob("_delta_log/*.json")))}

    def committed(self) -> list[int]:
        return [*DeltaTable(self.path).to_pyarrow_table().column("number").to_pylist()]


@pytest.mark.nightly
@pytest.mark.parametrize("sink", SINKS)  # test_delta_sink.py kills drivers that write tables, too
def test_chaos_loses_and_doubles_nothing(
    broker: BrokerProcess,
    start: START,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    sink: str,
) -> None:
    """Kills the driver, its Python processes and the broker at random times."""
    rng = Random(SEED)
    target: Topic | Table = filled(broker, RECORDS)
    where = dict[str, str]()
    if sink == "table":
        target = Table(tmp_path / "table")
        where = {"table": str(target.path)}
    began_s = time.monotonic()
    kills = {"driver": 0, "worker": 0, "broker": 0}
    left = ["driver", "worker", "broker"] * max(1, RECORDS // 250_000)
    failures = list[str]()
    driver: DriverProcess | None = None
    for _ in range(ROUNDS_MAX):
        if driver is None:
            driver = start(rows=max(RECORDS // 20, 200), master="local[2,4]", **where)
        status = _wait_random(driver, target, rng) if left else driver.wait(RUN_TIMEOUT_S)
        if status == 0:
            break
        if status is not None or not left:
            # The query failed after a kill: the next one continues from the checkpoint.
            failures.append(
                driver.said() if status is not None else f"slower than {RUN_TIMEOUT_S} s"
            )
            assert len(failures) <= sum(kills.values()), failures[-1]
            driver.end()
            driver = None
            continue
        victim = left.pop(0)
        kills[victim] += 1
        if victim == "broker":
            broker.kill()
            broker.start()
        elif victim == "worker" and (workers := driver.workers()):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        else:
            driver.kill()
            driver.end()
            driver = None
    else:
        raise AssertionError(f"not done after {ROUNDS_MAX} rounds")
    took_s = time.monotonic() - began_s
    found = sorted(map(int, target.committed()))
    assert len(found) == RECORDS
    assert found == list(range(RECORDS))
    killed = ", ".join(f"{count} x {what}" for what, count in kills.items())
    record_property(
        "figures",
        f"Spark, topic to {sink}, exactly once: {RECORDS} records in {took_s:.0f} s;"
        f" killed {killed}; {len(failures)} queries did not survive that",
    )


def _wait_random(driver: DriverProcess, target: Topic | Table, rng: Random) -> int | None:
    """Wait until more was written, and a random time more; the driver's status if it ended."""
    before = sum(target.ends().values())
    give_up_s = time.monotonic() + RUN_TIMEOUT_S
    while sum(target.ends().values()) == before:
        assert time.monotonic() < give_up_s, f"nothing more is written: {driver.said()}"
        status = driver.wait(0.05)
        if status is not None:
            return status
    return driver.wait(rng.uniform(0, 1))
