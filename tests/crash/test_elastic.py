"""Brokers are added, drained and removed while producers write: no error, nothing lost."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from crash.load import Load, Partition, check_promises, promises_of, read_all
from crash.processes import COMMAND, BrokerProcess, broker_process, run_ottla
from crash.topics import PATIENCE_S, admin_of

_TOPIC: Final = "orders"
_COUNT: Final = int(os.environ.get("OTTLA_MOVED_PARTITIONS", "8"))
_TURN_S: Final = 0.05  # all partitions are written to while each of them moves
_PARTITIONS: Final[list[Partition]] = [(_TOPIC, index) for index in range(_COUNT)]
_SETTINGS: Final = (
    "--set=broker.session.timeout.ms=2000",
    "--set=min.insync.replicas=2",
    "--set=default.replication.factor=3",
    "--set=reassignment.concurrent.max=3",
)


class Elastic:
    """Brokers by id, of which more can be started."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.brokers: dict[int, BrokerProcess] = {}
        self._directory = directory
        self._stack = stack

    def start(self, number: int) -> None:
        store = self._directory / "cluster.sqlite"
        self.brokers[number] = self._stack.enter_context(
            broker_process(
                self._directory / f"broker{number}",
                *(f"--node-id={number}", f"--store=sqlite:{store}", *_SETTINGS),
            )
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values() if broker.is_running)

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a command prints; it ends with this status."""
        done = run_ottla(*arguments, "--broker", self.bootstrap)
        assert done.returncode == status, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def listed(self) -> dict[int, dict[str, object]]:
        """`ottla broker list`, by id."""
        rows = map(json.loads, self.run("broker", "list", "--json").splitlines())
        return {row["id"]: row for row in rows}

    def limit(self) -> str | None:
        """The limit of `--throttle` that is in force on all brokers, if there is one."""
        rows = map(json.loads, self.run("config", "get", "broker", "all", "--json").splitlines())
        values = {row["name"]: row["value"] for row in rows if row["source"] == "all brokers"}
        return values.get("replication.catchup.bytes.per.s")

    def replicas(self, admin: AdminClient) -> list[list[int]]:
        topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
        return [topic.partitions[index].replicas for index in sorted(topic.partitions)]

    def logs_of(self, number: int) -> dict[Path, bytes]:
        data = self.brokers[number].data
        return {
            file.relative_to(data): file.read_bytes() for file in data.glob(f"{_TOPIC}-*/*.log")
        }


def wait_true(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "it does not come true"


@contextmanager
def elastic(directory: Path, *brokers: int) -> Iterator[Elastic]:
    with ExitStack() as stack:
        running = Elastic(directory, stack)
        for number in brokers:
            running.start(number)
        yield running


@pytest.mark.slow
def test_a_limit_of_a_move_holds_and_is_taken_back_after_ctrl_c(tmp_path: Path) -> None:
    with elastic(tmp_path, 0, 1) as running:
        admin = admin_of(running.bootstrap)
        for future in admin.create_topics([NewTopic(_TOPIC, 3, 2)]).values():
            future.result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for index in range(3):
            for _ in range(4):
                producer.produce(_TOPIC, os.urandom(500_000), partition=index)
        assert producer.flush(PATIENCE_S) == 0
        running.start(2)
        before = running.replicas(admin)
        arguments = ("rebalance", "--execute", "--throttle", "1000", "--broker", running.bootstrap)
        with subprocess.Popen(
            [*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as moving:
            wait_true(lambda: running.limit() == "1000")
            wait_true(lambda: running.replicas(admin) != before)
            assert moving.poll() is None, "2 MB at 1000 bytes a second are not there yet"
            moving.send_signal(signal.SIGINT)
            _, said = moving.communicate(timeout=PATIENCE_S)
        assert (moving.returncode, "Traceback" in said) == (130, False), said
        assert running.limit() is None
        wait_true(lambda: '"partitions": []' in running.run("topic", "reassign", "--json"))
        running.run("topic", "reassign", _TOPIC, "--to", "0,1", "--follow")
        running.run("config", "set", "broker", "1", "replication.catchup.bytes.per.s=7")
        said = running.run("rebalance", "--execute", "--throttle", "1000", status=2)
        assert "it has replication.catchup.bytes.per.s=7 of its own" in said


@pytest.mark.slow
def test_brokers_come_and_go_under_load(tmp_path: Path) -> None:
    with elastic(tmp_path, 0, 1, 2) as running:
        admin = admin_of(running.bootstrap)
        for future in admin.create_topics([NewTopic(_TOPIC, _COUNT, 3)]).values():
            future.result(PATIENCE_S)
        loads = [
            Load(running.bootstrap, name, _PARTITIONS, is_idempotent=True, turn_s=_TURN_S)
            for name in "ab"
        ]
        for load in loads:
            load.start()
            load.wait_acked(200)
        try:
            running.start(3)
            assert running.listed()[3]["replicas"] == 0
            running.run("rebalance", "--execute", "--follow", "--throttle", "50000000")
            assert running.limit() is None, "it was for the time of the move"
            held = [int(str(row["replicas"])) for row in running.listed().values()]
            assert max(held) - min(held) <= 1, held
            running.run("cluster", "status")
            for load in loads:
                load.wait_acked(load.acked_count + 200)
            running.run("broker", "drain", "1", "--follow")
            assert all(1 not in replicas for replicas in running.replicas(admin))
            said = running.run("broker", "remove", "1", "--yes", status=1)
            assert "broker 1 is running: stop it first" in said
            assert running.brokers[1].stop() == 0
            assert running.run("cluster", "status", status=1).startswith("cluster ")
            running.run("broker", "remove", "1", "--yes")
            assert sorted(running.listed()) == [0, 2, 3]
            running.run("cluster", "status")
            for load in loads:
                load.wait_acked(load.acked_count + 200)
        finally:
            for load in loads:
                load.stop()
        assert not any(load.failed for load in loads)
        check_promises(read_all(running.bootstrap, _PARTITIONS), promises_of(loads))
        assert running.logs_of(1) == {}, "the logs of replicas that have moved are gone"
        for number in (0, 2, 3):
            assert running.brokers[number].stop() == 0
        logs = [running.logs_of(number) for number in (0, 2, 3)]
        assert logs[0] == logs[1] == logs[2] != {}
