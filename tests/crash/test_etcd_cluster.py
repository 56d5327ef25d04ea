"""Three brokers on an etcd of three members: any of them is killed, and all of etcd goes away."""

import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cli.processes import wait_until
from crash.load import Load
from crash.processes import BrokerProcess
from crash.test_cluster import Cluster, begin, cluster, finish
from crash.topics import PATIENCE_S, admin_of
from fakes.etcd_process import EtcdProcess, running, three_members


@dataclass(frozen=True, slots=True)
class Machines:
    """Members of etcd, and the brokers that use it."""

    members: list[EtcdProcess]
    cluster: Cluster

    def metric(self, broker: BrokerProcess, name: str) -> float:
        """A metric of a broker that has no labels."""
        address = next(one for one in broker.arguments if one.startswith("--metrics="))
        url = f"http://{address.removeprefix('--metrics=')}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            lines: list[str] = page.read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        return float(line.split()[1])

    def wait_known(self, topic: str) -> None:
        """Return when every broker knows a topic, by itself."""
        for broker in self.cluster.brokers:
            admin = admin_of(broker.address)
            wait_until(
                lambda: topic in admin.list_topics(timeout=PATIENCE_S).topics,  # noqa: B023
                f"{broker.address} knows {topic}",
            )

    def wait_metric(self, name: str, value: float) -> None:
        """Return when a metric has this value on every broker."""
        brokers = self.cluster.brokers
        wait_until(
            lambda: all(self.metric(broker, name) == value for broker in brokers),
            f"{name} is {value:g}",
        )


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    members = three_members(folder)
    servers = ",".join(str(member.endpoint) for member in members)
    with ExitStack() as stack:
        stack.enter_context(running(*members))
        started = stack.enter_context(cluster(folder, store=f"etcd://{servers}/test"))
        yield Machines(members, started)


def more_acknowledged(loads: list[Load]) -> None:
    for load in loads:
        load.wait_acked(load.acked_count + 200)


def refusal(admin: AdminClient, topic: str) -> KafkaError | None:
    """The reason why a topic is not created; None once it is there."""
    (future,) = admin.create_topics([NewTopic(topic, 1, 3)], request_timeout=40).values()
    try:
        future.result(PATIENCE_S)
    except KafkaException as problem:
        error = problem.args[0]
        assert isinstance(error, KafkaError)
        return None if error.code() == KafkaError.TOPIC_ALREADY_EXISTS else error
    return None


def commit_offset(consumer: Consumer, offset: int) -> None:
    position = TopicPartition("orders", 0, offset)
    consumer.commit(offsets=[position], asynchronous=False)
    assert consumer.committed([position], PATIENCE_S)[0].offset == offset


@pytest.mark.slow
def test_the_death_of_a_broker_and_of_etcd_loses_nothing_and_stops_no_traffic(
    tmp_path: Path,
) -> None:
    with machines(tmp_path) as here:
        running_now = here.cluster
        admin, loads = begin(running_now)
        consumer = Consumer({"bootstrap.servers": running_now.bootstrap, "group.id": "readers"})
        try:
            running_now.wait_in_sync(admin)
            victim = running_now.brokers[running_now.leaders(admin)[0]]
            victim.kill()
            more_acknowledged(loads)
            victim.start()
            running_now.wait_in_sync(admin)
            commit_offset(consumer, 1)

            here.members[0].kill()  # the one that all brokers began with
            # Not at once: the others may have to elect a leader first.
            wait_until(lambda: refusal(admin, "while-two-are-left") is None, "a topic is created")
            here.wait_known("while-two-are-left")
            more_acknowledged(loads)

            for member in here.members[1:]:
                member.kill()
            here.wait_metric("ottla_lease_left_seconds", 0)
            more_acknowledged(loads)
            commit_offset(consumer, 2)
            error = refusal(admin, "while-none-is-left")
            assert error is not None
            assert error.code() == KafkaError.REQUEST_TIMED_OUT
            assert "coordination store is away" in error.str()
            here.wait_metric("ottla_store_up", 0)

            for member in here.members:
                member.spawn()
            here.wait_metric("ottla_store_up", 1)
            wait_until(lambda: refusal(admin, "when-all-are-back") is None, "a topic is created")
            here.wait_known("when-all-are-back")
            running_now.wait_in_sync(admin)
            more_acknowledged(loads)
            commit_offset(consumer, 3)
        finally:
            consumer.close()
            finish(running_now, loads)
        for broker in running_now.brokers:
            assert broker.stop() == 0, broker.said()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_member_of_etcd_that_hangs_is_left_though_its_connections_stay_open(
    tmp_path: Path,
) -> None:
    with machines(tmp_path) as here:
        admin, loads = begin(here.cluster)
        try:
            here.cluster.wait_in_sync(admin)
            here.members[0].pause()
            try:
                wait_until(lambda: refusal(admin, "while-one-hangs") is None, "a topic is created")
                wait_until(
                    lambda: all("is silent" in one.said() for one in here.cluster.brokers),
                    "every broker doubts its watch",
                )
                here.wait_known("while-one-hangs")
                here.cluster.wait_in_sync(admin)
                more_acknowledged(loads)
            finally:
                here.members[0].resume()
        finally:
            finish(here.cluster, loads)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_last_member_of_etcd_becomes_a_new_one_that_the_brokers_follow(tmp_path: Path) -> None:
    """Two of three members are lost for good: docs/cluster.md says what to do."""
    with machines(tmp_path) as here:
        admin, loads = begin(here.cluster)
        try:
            here.cluster.wait_in_sync(admin)
            kept, *lost = here.members
            for member in lost:
                member.kill()
                shutil.rmtree(member.data)
            here.wait_metric("ottla_store_up", 0)
            more_acknowledged(loads)
            kept.kill()
            kept.arguments = ("--force-new-cluster",)
            kept.start()
            here.wait_metric("ottla_store_up", 1)
            wait_until(lambda: refusal(admin, "on-one-member") is None, "a topic is created")
            here.wait_known("on-one-member")
            here.cluster.wait_in_sync(admin)
            more_acknowledged(loads)
        finally:
            finish(here.cluster, loads)
        for broker in here.cluster.brokers:
            assert broker.stop() == 0, broker.said()
