"""Three brokers in processes of their own, one store between them: killed, started, stopped.

Topics have three replicas, two of which must be in sync: the death of one broker loses nothing,
and producers go on without an error.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final
from urllib.request import urlopen

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from cli.processes import wait_until
from crash import hung_disk
from crash.load import Load, Partition, check_promises, promises_of, read_all
from crash.processes import BrokerProcess, broker_process, free_port, run_ottla
from crash.topics import PATIENCE_S, admin_of

_KILLS: Final = int(os.environ.get("OTTLA_CLUSTER_KILLS", "3"))
_BROKERS: Final = range(3)
_TOPIC: Final = "orders"
_PARTITIONS: Final[list[Partition]] = [(_TOPIC, index) for index in range(3)]
_SETTINGS: Final = (
    "--set=broker.session.timeout.ms=2000",
    "--set=min.insync.replicas=2",
    # All are on one machine, which `auto` counts once.
    "--set=default.replication.factor=3",
    "--set=offsets.topic.replication.factor=3",
    "--set=transaction.state.log.replication.factor=3",
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

    def in_sync(self, admin: AdminClient) -> set[int]:
        """The brokers that are in sync on any partition."""
        topic = admin.list_topics(_TOPIC, timeout=PATIENCE_S).topics[_TOPIC]
        return {broker for one in topic.partitions.values() for broker in one.isrs}

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
def cluster(
    directory: Path, *settings: str, store: str | None = None, on_machines: bool = False
) -> Iterator[Cluster]:
    """Three brokers on one store, which is a file of theirs unless another is named.

    Each is in a rack of its own, and with `on_machines`, as far as it knows, on its own machine.
    """
    store = store or f"sqlite:{directory / 'cluster.sqlite'}"
    with ExitStack() as stack:
        yield Cluster(
            [
                stack.enter_context(
                    broker_process(
                        directory / f"broker{number}",
                        *(f"--node-id={number}", f"--store={store}", *_SETTINGS, *settings),
                        f"--rack=rack-{number}",
                        *((f"--machine=machine-{number}",) if on_machines else ()),
                        f"--metrics=127.0.0.1:{free_port()}",
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
def test_nobody_waits_for_the_lease_of_a_process_that_died_on_another_machine(
    tmp_path: Path,
) -> None:
    lease = "--set=broker.session.timeout.ms=600000"
    with cluster(tmp_path, lease, on_machines=True) as running:
        admin, loads = begin(running)
        try:
            running.wait_in_sync(admin)
            running.brokers[running.leaders(admin)[0]].kill()
            for load in loads:
                load.wait_acked(load.acked_count + 300)
        finally:
            finish(running, loads)


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


@pytest.mark.slow
@pytest.mark.nightly
def test_brokers_are_restarted_one_after_the_other_and_no_client_sees_an_error(
    tmp_path: Path,
) -> None:
    """A rolling upgrade, as docs/cluster.md says: the next when the cluster is whole again."""

    def is_whole() -> bool:
        status = run_ottla("cluster", "status", f"--broker={running.bootstrap}")
        return status.returncode == 0

    with cluster(tmp_path) as running:
        _, loads = begin(running)
        try:
            wait_until(is_whole, "the cluster is whole")
            for broker in running.brokers:
                assert broker.stop() == 0
                for load in loads:
                    load.wait_acked(load.acked_count + 200)
                broker.start()
                wait_until(is_whole, "the cluster is whole")
        finally:
            finish(running, loads)


@pytest.mark.slow
def test_a_broker_whose_disk_hangs_or_fails_leads_nothing_until_it_is_back(tmp_path: Path) -> None:
    control = tmp_path / "disk"
    control.touch()
    with cluster(tmp_path, "--set=replica.lag.time.max.ms=1000") as running:
        admin, loads = begin(running)
        try:
            sick = running.leaders(admin)[0]
            victim = running.brokers[sick]
            assert victim.stop() == 0
            victim.command = [sys.executable, hung_disk.__file__, str(control)]
            victim.start()
            running.wait_in_sync(admin)
            elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(_TOPIC, 0)])
            assert elected.result(PATIENCE_S) == {TopicPartition(_TOPIC, 0): None}
            wait_until(lambda: running.leaders(admin)[0] == sick, "the first replica leads")
            for sickness in (hung_disk.hanging, hung_disk.failing):
                with sickness(control):
                    wait_until(lambda: sick not in running.in_sync(admin), "others are in sync")
                    # Another broker may answer, which has not heard of it yet.
                    wait_until(lambda: sick not in running.leaders(admin), "others lead")
                    for load in loads:
                        load.wait_acked(load.acked_count + 300)
                if sickness is hung_disk.failing:  # a disk that failed is not trusted any more
                    victim.kill()
                    victim.start()
                running.wait_in_sync(admin)
        finally:
            finish(running, loads)
        assert "partitions given up" in victim.said()


@pytest.mark.slow
def test_a_replica_that_catches_up_fetches_no_faster_than_it_may(tmp_path: Path) -> None:
    page = f"127.0.0.1:{free_port()}"
    limit = "replication.catchup.bytes.per.s"
    with cluster(tmp_path) as running:
        admin = admin_of(running.bootstrap)
        for future in admin.create_topics([NewTopic(_TOPIC, 1, 3)]).values():
            future.result(PATIENCE_S)
        (leader,) = running.leaders(admin)
        number = (leader + 1) % len(_BROKERS)
        behind = running.brokers[number]
        assert behind.stop() == 0
        _send(running.bootstrap, 60)
        behind.arguments += (f"--metrics={page}", f"--set={limit}=1")
        behind.start()
        fetched = f'ottla_replica_fetch_bytes_total{{leader="{leader}"}}'
        wait_until(lambda: metric(page, fetched, 0.0) > 0, "what comes at once has come")
        _send(running.bootstrap, 300)
        assert number not in running.in_sync(admin), "it may go on in some days"
        lifted = run_ottla(
            *("config", "set", "broker", str(number), f"{limit}=0", "--broker", behind.address)
        )
        assert lifted.returncode == 0, lifted.stderr
        running.wait_in_sync(admin)


def _send(bootstrap: str, count: int) -> None:
    """Send so many records one after the other; each is acknowledged by all that are in sync."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    for _ in range(count):
        producer.produce(_TOPIC, bytes(10_000))
        assert producer.flush(PATIENCE_S) == 0


@pytest.mark.slow
def test_groups_outlive_their_first_broker_once_others_have_come(tmp_path: Path) -> None:
    store = f"--store=sqlite:{tmp_path / 'cluster.sqlite'}"
    settings = ("--set=broker.session.timeout.ms=2000", "--set=offsets.topic.num.partitions=2")
    with ExitStack() as stack:
        pages = [f"127.0.0.1:{free_port()}" for _ in _BROKERS]

        def join(number: int) -> BrokerProcess:
            place = (f"--node-id={number}", f"--machine=machine-{number}", store)
            arguments = (*place, *settings, f"--metrics={pages[number]}")
            return stack.enter_context(broker_process(tmp_path / f"broker{number}", *arguments))

        first = join(0)
        admin = admin_of(first.address)
        for future in admin.create_topics([NewTopic(_TOPIC, 1)]).values():
            future.result(PATIENCE_S)
        _commit_offset(first.address, 17)
        assert _replica_counts(admin, "__consumer_offsets") == {(1, 1)}
        others = [join(1), join(2)]
        wait_until(
            lambda: _replica_counts(admin, "__consumer_offsets") == {(3, 3)},
            "the groups' topic has three replicas in sync",
        )
        created = run_ottla("topic", "create", "safe", "--broker", first.address)
        assert created.returncode == 0, created.stderr
        assert _replica_counts(admin, "safe") == {(3, 3)}
        shown = run_ottla("topic", "describe", "safe", "--broker", first.address)
        assert "min.insync.replicas" in shown.stdout, shown.stdout
        leaders = [metric(page, "ottla_leaders") for page in pages]
        assert sum(leaders) == 2 + 1 + 1, "partitions of three topics"
        assert metric(pages[1], f'ottla_replica_fetch_bytes_total{{leader="{0}"}}') > 0
        assert metric(pages[0], 'ottla_isr_changes_total{kind="grow"}') >= 4
        first.kill()
        group = ConsumerGroupTopicPartitions("readers", [TopicPartition(_TOPIC, 0)])
        admin = admin_of(",".join(broker.address for broker in others))
        committed = admin.list_consumer_group_offsets([group])["readers"].result(PATIENCE_S)
        assert [one.offset for one in committed.topic_partitions] == [17]
        assert metric(pages[1], 'ottla_partitions{state="offline"}') == 1, "its only replica died"
        elected = [metric(page, 'ottla_elections_total{kind="clean"}') for page in pages[1:]]
        assert sum(elected) >= 2
        behind = [metric(page, 'ottla_partitions{state="under_replicated"}') for page in pages[1:]]
        assert sum(behind) == 2 + 1


def _commit_offset(address: str, offset: int) -> None:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "group.id": "readers",
    }
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(_TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def metric(page: str, sample: str, missing: float | None = None) -> float:
    with urlopen(f"http://{page}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " ")]
    assert found or missing is not None, f"there is no {sample}"
    return found[0] if found else missing or 0.0


def _replica_counts(admin: AdminClient, topic: str) -> set[tuple[int, int]]:
    """How many replicas partitions of a topic have, and how many of these are in sync."""
    partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {(len(one.replicas), len(one.isrs)) for one in partitions.values()}


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
