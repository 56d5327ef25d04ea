"""Partitions of a topic become more, fewer and more again under running clients.

Producers and groups of three libraries go on without a restart and without an error, and every
record is read exactly once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from cli.processes import wait_until
from crash.processes import run_ottla
from crash.resized_topic import GROUPS, TOPIC, Clients
from crash.test_cluster import cluster
from crash.topics import PATIENCE_S, admin_of
from ottla import testing

_CONFIG = {
    "partition.drain.ms": "1000",
    "partition.retire.ms": "500",
    "partition.drop.when": "read",
}


def begin(
    bootstrap: str, replicas: int, groups: Sequence[str] = GROUPS
) -> tuple[AdminClient, Clients]:
    admin = admin_of(bootstrap)
    for future in admin.create_topics([NewTopic(TOPIC, 4, replicas, config=_CONFIG)]).values():
        future.result(PATIENCE_S)
    clients = Clients(bootstrap, groups)
    clients.start()
    wait_sent(clients, 300)

    def have_committed() -> bool:
        clients.check()
        return all(clients.read.values())

    # Only groups that have offsets are waited for before records are dropped.
    wait_until(have_committed, "every group has committed offsets")
    return admin, clients


def wait_sent(clients: Clients, count: int) -> None:
    """Return when so many more records have been acknowledged."""
    goal = len(clients.sent) + count

    def are_sent() -> bool:
        clients.check()
        return len(clients.sent) >= goal

    wait_until(are_sent, f"{count} more records are acknowledged")


def grow(admin: AdminClient, clients: Clients, count: int) -> None:
    for future in admin.create_partitions([NewPartitions(TOPIC, count)]).values():
        future.result(PATIENCE_S)
    known = dict(clients.sent_to)

    def are_used() -> bool:
        clients.check()
        return all(clients.sent_to[index] > known.get(index, 0) for index in range(count))

    wait_until(are_used, "producers write to all partitions")


def have_active(admin: AdminClient, count: int) -> None:
    """Change the number as any client of Kafka can."""
    entry = ConfigEntry(
        "active.partitions", str(count), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)


def listed(admin: AdminClient) -> int:
    return len(admin.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions)


def wait_listed(admin: AdminClient, clients: Clients, count: int) -> None:
    def are_listed() -> bool:
        clients.check()
        return listed(admin) == count

    wait_until(are_listed, f"{count} partitions are listed")


def finish(clients: Clients) -> int:
    """Stop all clients; every record was read once by every group. Returns how many there were."""
    clients.stop_producers(PATIENCE_S)
    clients.check()

    def have_all() -> bool:
        clients.check()
        return all(len(read) >= len(clients.sent) for read in clients.read.values())

    wait_until(have_all, "every group has read everything")
    clients.stop_consumers(PATIENCE_S)
    for group, read in clients.read.items():
        assert read.keys() == clients.sent.keys(), group
        assert not [value for value, count in read.items() if count > 1], group
    return len(clients.sent)


@pytest.mark.slow
def test_partitions_become_fewer_under_running_clients() -> None:
    with testing.broker({"partition.check.interval.ms": "100"}) as address:
        admin, clients = begin(address, 1)
        grow(admin, clients, 8)
        have_active(admin, 3)
        wait_sent(clients, 300)
        wait_listed(admin, clients, 3)
        wait_sent(clients, 300)
        assert finish(clients) > 900


@pytest.mark.nightly
def test_partitions_of_three_brokers_become_fewer_under_running_clients(tmp_path: Path) -> None:
    lease = "--set=broker.session.timeout.ms=15000"  # of a busy machine: no broker is to be missed
    with cluster(tmp_path, "--set=partition.check.interval.ms=500", lease) as running:
        admin, clients = begin(running.bootstrap, 3)
        grow(admin, clients, 8)
        for count in (3, 8, 5, 2):
            have_active(admin, count)
            wait_sent(clients, 1000)
        wait_listed(admin, clients, 2)
        wait_sent(clients, 1000)
        broker = running.brokers[0].address
        altered = run_ottla("topic", "alter", TOPIC, "--partitions", "6", "--broker", broker)
        assert altered.returncode == 0, altered.stderr
        wait_listed(admin, clients, 6)
        wait_sent(clients, 1000)
        assert finish(clients) > 6000


@pytest.mark.nightly
def test_forwarded_batches_are_appended_once_while_brokers_die_and_stop(
    tmp_path: Path,
) -> None:
    """Each broker in turn, so that it forwards for some partitions and leads targets of others."""
    with cluster(tmp_path) as running:
        admin = admin_of(running.bootstrap)
        for future in admin.create_topics([NewTopic(TOPIC, 8, 3)]).values():
            future.result(PATIENCE_S)
        clients = Clients(running.bootstrap, [])
        clients.start()
        wait_sent(clients, 300)
        have_active(admin, 3)
        for broker in running.brokers:
            broker.kill()
            wait_sent(clients, 500)
            broker.start()
            running.wait_in_sync(admin)
            broker.stop()
            wait_sent(clients, 500)
            broker.start()
            running.wait_in_sync(admin)
        clients.stop_producers(PATIENCE_S)
        clients.check()
        found = Counter(read_all_values(running.bootstrap))
        assert found.keys() == clients.sent.keys()
        doubled = {value for value, count in found.items() if count > 1}
        assert not [value for value in doubled if not value.startswith("keyed-")]  # not idempotent


def read_all_values(bootstrap: str) -> Iterator[str]:
    """Every committed record of the topic."""
    options = {"bootstrap.servers": bootstrap, "group.id": "all", "enable.partition.eof": True}
    consumer = Consumer({**options, "enable.auto.commit": False})
    partitions = consumer.list_topics(TOPIC, PATIENCE_S).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in partitions])
    unread = set(partitions)
    while unread:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"no end of partitions {unread}"
        problem = message.error()
        if problem is None:
            yield (message.value() or b"").decode()
            continue
        assert problem.code() == KafkaError._PARTITION_EOF, problem
        unread.discard(message.partition() or 0)
    consumer.close()
