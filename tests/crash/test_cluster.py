"""Three brokers in processes of their own, one store between them: killed, started, stopped.

Topics have three replicas, two of which must be in sync: the death of one broker loses nothing,
and producers go on without an error.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cli.processes import wait_until
from crash.load import Load, Partition, check_promises, promises_of, read_all
from crash.processes import BrokerProcess, broker_process, run_ottla
from crash.topics import PATIENCE_S, admin_of

_KILLS: Final = int(os.environ.get("OTTLA_CLUSTER_KILLS", "3"))
_BROKERS: Final = range(3)
_TOPIC: Final = "orders"
_PARTITIONS: Final[list[Partition]] = [(_TOPIC, index) for index in range(3)]
_SETTINGS: Final = (
    "--set=broker.session.timeout.ms=2000",
    "--set=min.insync.replicas=2",
    "--set=default.replication.factor=3",
)


class Cluster:
    """The processes, by broker id."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.bootstrap = ",".join(broker.address for broker in brokers)

    def leaders(self, admin: AdminClient) -> list[int]:
        """The leader of each partition; -1 for none."""
        topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
        return [topic.partitions[index].leader for index in sorted(topic.partitions)]

    def wait_in_sync(self, admin: AdminClient) -> None:
        """Return when every replica is in sync, and every partition has a leader."""

        def are_in_sync() -> bool:
            topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
            return all(
                len(one.isrs) == len(_BROKERS) and one.leader >= 0
                for one in topic.partitions.values()
            )

        wait_until(are_in_sync, "every replica is in sync")


@contextmanager
def cluster(directory: Path, *more: str) -> Iterator[Cluster]:
    """Three brokers, with these arguments besides the usual ones."""
    store = directory / "cluster.sqlite"
    with ExitStack() as stack:
        yield Cluster(
            [
                stack.enter_context(
                    broker_process(
                        directory / f"broker{number}",
                        *(f"--node-id={number}", f"--store=sqlite:{store}", *_SETTINGS, *more),
                    )
                )
                for number in _BROKERS
            ]
        )


def begin(running: Cluster) -> tuple[AdminClient, list[Load]]:
    """The topic, and producers that write to it."""
    admin = admin_of(running.bootstrap)
    for future in admin.create_topics([NewTopic(_TOPIC, 3, 3)]).values():
        future.result(PATIENCE_S)
    loads = [
        Load(running.bootstrap, "one", _PARTITIONS, is_idempotent=True),
        Load(running.bootstrap, "two", _PARTITIONS, is_idempotent=True),
    ]
    for load in loads:
        load.start()
        load.wait_acked(100)
    return admin, loads


def finish(running: Cluster, loads: list[Load]) -> int:
    """Stop the producers; everything that was acknowledged is there. Returns how much that was."""
    for load in loads:
        load.stop()
    assert not any(load.failed for load in loads)
    return check_promises(read_all(running.bootstrap, _PARTITIONS), promises_of(loads))


@pytest.mark.slow
def test_the_death_of_a_leader_loses_nothing_and_stops_nobody(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    with cluster(tmp_path) as running:
        admin, loads = begin(running)
        try:
            for _ in range(_KILLS):
                running.wait_in_sync(admin)
                victim = running.brokers[rng.choice(running.leaders(admin))]
                victim.kill()
                for load in loads:
                    load.wait_acked(load.acked_count + 300)
                victim.start()
            running.wait_in_sync(admin)
        finally:
            acked = finish(running, loads)
    report(f"{_KILLS} kills of a leader: {acked} acknowledged records, 0 lost, 0 doubled")


@pytest.mark.slow
def test_a_broker_that_stops_hands_over_and_one_that_lost_its_disk_gets_all_of_it_again(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as running:
        admin, loads = begin(running)
        try:
            leaving = running.leaders(admin)[0]
            stopped = running.brokers[leaving]
            assert stopped.stop() == 0
            assert leaving not in running.leaders(admin)
            assert all(leader >= 0 for leader in running.leaders(admin))
            assert leaving in admin.list_topics(timeout=PATIENCE_S).brokers, "named for a while"
            for load in loads:
                load.wait_acked(load.acked_count + 300)
            shutil.rmtree(stopped.data)
            stopped.start()
            running.wait_in_sync(admin)
        finally:
            finish(running, loads)
        for broker in running.brokers:
            assert broker.stop() == 0
            verified = run_ottla("log", "verify", str(broker.data))
            assert verified.returncode == 0, verified.stderr
        logs = [
            {
                file.relative_to(broker.data): file.read_bytes()
                for file in broker.data.glob(f"{_TOPIC}-*/*.log")
            }
            for broker in running.brokers
        ]
        assert logs[0] == logs[1] == logs[2] != {}


def test_two_processes_are_not_the_same_broker(tmp_path: Path) -> None:
    store = f"--store=sqlite:{tmp_path / 'cluster.sqlite'}"
    short = "--set=broker.session.timeout.ms=2000"
    with broker_process(tmp_path / "one", "--node-id=1", store, short) as broker:
        refused = run_ottla(
            *("serve", f"--data={tmp_path / 'two'}", "--listen=127.0.0.1:0"),
            *("--node-id=1", store, short),
        )
        assert refused.returncode == 2
        assert "broker 1 is running elsewhere" in refused.stderr
        assert "choose another --node-id" in refused.stderr
        assert broker.is_running
