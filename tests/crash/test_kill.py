"""`kill -9`, again and again, while clients write and an operator changes topics.

What a killed process has written survives in the page cache, so here `durability=replicated` must
hold as much as `fsync` does; cutting the power is another test's business.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from crash.load import Load, Partition, check_promises, promises_of, read_all
from crash.processes import BrokerProcess, broker_process, run_ottla
from crash.topics import (
    PATIENCE_S,
    admin_of,
    create_topics,
    partition_counts,
    partition_directories,
    setting_of,
)

_ROUNDS: Final = int(os.environ.get("OTTLA_CRASH_ROUNDS", "8"))
_RECENT: Final = 1500  # records per partition, more than are written between two kills
_TINY_SEGMENTS: Final = {"segment.bytes": "16384"}
_KEPT: Final[list[Partition]] = [("synced", 0), ("synced", 1), ("cached", 0), ("cached", 1)]
_SHORT: Final[Partition] = ("short", 0)  # retention takes its segments as fast as they come
_PARTITIONS: Final = [*_KEPT, _SHORT]


@pytest.mark.slow
def test_records_that_were_deleted_do_not_come_back(tmp_path: Path, rng: Random) -> None:
    """The first record that is left is asked for after a kill right behind the acknowledgement."""
    with broker_process(tmp_path / "data") as broker:
        create_topics(admin_of(broker.address), {"t": {}}, partitions=3)
        partitions: list[Partition] = [("t", index) for index in range(3)]
        load = Load(broker.address, "writer", partitions, is_idempotent=True)
        load.start()
        load.wait_acked(1500)
        load.stop()
        starts = dict.fromkeys(partitions, 0)
        for _ in range(max(3, _ROUNDS // 4)):
            index = rng.randrange(3)
            starts["t", index] += rng.randrange(1, 30)
            wanted = TopicPartition("t", index, starts["t", index])
            admin = admin_of(broker.address)
            (deleted,) = admin.delete_records([wanted]).values()
            assert deleted.result(PATIENCE_S).low_watermark == starts["t", index]
            broker.kill()
            broker.start()
            found = read_all(broker.address, partitions)
            assert {tp: letters[0].offset for tp, letters in found.items()} == starts
        assert broker.stop() == 0


class Operator:
    """Changes topics one at a time and remembers what each may look like.

    A change that was acknowledged is true for ever. One that was interrupted may have happened or
    not, and whoever looks first decides which.
    """

    def __init__(self, admin: AdminClient, rng: Random) -> None:
        self._admin = admin
        self._rng = rng
        self._partitions: dict[str, set[int]] = {}  # none of them is 0: the topic does not exist
        self._retention: dict[str, set[str]] = {}
        self._settle: Callable[[bool], None] = _nothing
        self._future: Future[Any] | None = None
        self.acknowledged = 0
        self.interrupted = 0

    def begin(self) -> None:
        """Ask for a change, without waiting for it."""
        living = [name for name, counts in self._partitions.items() if 0 not in counts]
        changes = [self._create, self._grow, self._configure, self._delete]
        change = self._rng.choice(changes) if len(living) > 2 else self._create
        change(self._rng.choice(living) if living else "")

    def finish(self) -> None:
        """Learn what became of the change that was begun, unless that is known."""
        if self._future is None:
            return
        future, self._future = self._future, None
        try:
            future.result(PATIENCE_S)
        except KafkaException:
            self.interrupted += 1
            self._settle(False)
        else:
            self.acknowledged += 1
            self._settle(True)

    def check(self, data: Path) -> None:
        """The broker and its directory agree with each other, and with what was acknowledged."""
        counts = partition_counts(self._admin)
        assert partition_directories(data) == counts
        for name, possible in self._partitions.items():
            assert counts.get(name, 0) in possible, (name, counts.get(name), possible)
            possible.intersection_update({counts.get(name, 0)})
            if counts.get(name, 0):
                retention = setting_of(self._admin, name, "retention.ms")
                assert retention in self._retention[name]
                self._retention[name] = {retention}

    def _create(self, _: str) -> None:
        name = f"made-{len(self._partitions)}"
        self._partitions[name], self._retention[name] = {0, 1}, {"60000"}
        wanted = NewTopic(name, 1, config={"retention.ms": "60000"})
        (self._future,) = self._admin.create_topics([wanted]).values()
        self._settle = self._settler(self._partitions[name], {1})

    def _grow(self, name: str) -> None:
        grown = max(self._partitions[name]) + self._rng.randint(1, 3)
        self._partitions[name].add(grown)
        (self._future,) = self._admin.create_partitions([NewPartitions(name, grown)]).values()
        self._settle = self._settler(self._partitions[name], {grown})

    def _configure(self, name: str) -> None:
        value = str(self._rng.randrange(60_000, 10**9))
        self._retention[name].add(value)
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        (self._future,) = self._admin.incremental_alter_configs([resource]).values()
        self._settle = self._settler(self._retention[name], {value})

    def _delete(self, name: str) -> None:
        self._partitions[name].add(0)
        (self._future,) = self._admin.delete_topics([name]).values()
        self._settle = self._settler(self._partitions[name], {0})

    def _settler(self, possible: set[Any], done: set[Any]) -> Callable[[bool], None]:
        return lambda is_done: possible.intersection_update(done) if is_done else None


def _nothing(is_done: bool) -> None:
    return


@pytest.mark.slow
def test_kills_lose_double_and_reorder_nothing(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    settings = (
        "--set=log.flush.offset.checkpoint.interval.ms=100",
        "--set=log.retention.check.interval.ms=50",
    )
    with broker_process(tmp_path / "data", *settings) as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"synced": _TINY_SEGMENTS}, partitions=2)
        replicated = {**_TINY_SEGMENTS, "durability": "replicated"}
        create_topics(admin, {"cached": replicated}, partitions=2)
        create_topics(admin, {"short": {**_TINY_SEGMENTS, "retention.bytes": "80000"}})
        operator = Operator(admin, rng)
        loads = [
            Load(broker.address, "idempotent", _PARTITIONS, is_idempotent=True),
            Load(broker.address, "plain", _PARTITIONS, is_idempotent=False),
        ]
        for load in loads:
            load.start()
        try:
            began_s = time.monotonic()
            for number in range(_ROUNDS):
                for load in loads:
                    load.resume()
                    load.wait_acked(load.acked_count + 1)
                _crash_once(broker, operator, rng)
                for load in loads:
                    load.pause()  # what is read is then not longer every round
                operator.check(broker.data)
                _check_kept(broker, loads, last=None if number % 10 == 9 else _RECENT)
            took_s = time.monotonic() - began_s
        finally:
            for load in loads:
                load.stop()
        assert broker.stop() == 0
        broker.arguments = ()  # retention rests, so that a reader is not overtaken by it
        broker.start()
        promises = promises_of(loads)
        checked = check_promises(read_all(broker.address, _PARTITIONS), promises)
        assert broker.stop() == 0
    assert checked == sum(load.acked_count for load in loads)
    assert not any(load.failed for load in loads)
    verified = run_ottla("log", "verify", str(tmp_path / "data"))
    assert verified.returncode == 0, verified.stderr
    report(
        f"{_ROUNDS} kills in {took_s:.0f} s: {checked} acknowledged records, 0 lost;"
        f" {operator.acknowledged} changes of topics acknowledged, {operator.interrupted} not"
    )


def _crash_once(broker: BrokerProcess, operator: Operator, rng: Random) -> None:
    """Kill at a random moment: under load, in the middle of a change, or while starting."""
    time.sleep(rng.uniform(0, 0.2))  # chance decides about the moment; nothing waits for anything
    operator.begin()
    if rng.random() < 0.5:
        operator.finish()
    else:
        time.sleep(rng.uniform(0, 0.03))
    broker.kill()
    operator.finish()
    broker.spawn()
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0, 0.5))
        broker.kill()
        broker.spawn()
    broker.wait_ready()


def _check_kept(broker: BrokerProcess, loads: list[Load], *, last: int | None) -> None:
    promises = promises_of(loads)
    for promised in promises.values():
        del promised[_SHORT]
    check_promises(read_all(broker.address, _KEPT, last=last), promises)
