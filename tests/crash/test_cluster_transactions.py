"""Groups and transactions of three brokers, whose coordinators and leaders are killed.

Every transaction writes to partitions of all brokers and commits offsets of a group that has its
coordinator anywhere; kills go to the broker that coordinates the group, to one that coordinates
transactions, and to one that leads what is written.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import pytest
from confluent_kafka.admin import AdminClient

from cli.processes import wait_until
from crash.exactly_once import (
    RECORDS_MAX,
    Journals,
    Lane,
    Reader,
    Slot,
    check,
    fill,
    read_committed,
    targets_of,
    working,
)
from crash.group_judgement import Deliveries, Partition, acknowledged, overlaps
from crash.group_members import CONSUMER, Group, Subscription, Way, groups_under_load
from crash.load import Load
from crash.offsets_log import read_written
from crash.test_cluster import Cluster, cluster
from crash.topics import PATIENCE_S, admin_of, create_topics
from crash.transformer import OUTPUT_PARTITIONS
from ottla.client.client import Client
from ottla.client.group_offsets import committed_offsets
from ottla.client.partitions import Isolation, list_offsets
from ottla.coordinator.runtime.coordinator import shard_index
from ottla.model import Endpoint, Offset, TopicPartition
from ottla.protocol.messages.offsets import LATEST

Answer = TypeVar("Answer")

_TRANSACTIONS: Final = int(os.environ.get("OTTLA_CLUSTER_TRANSACTIONS", "200"))
_KILLS: Final = int(os.environ.get("OTTLA_CLUSTER_COORDINATOR_KILLS", "3"))
_OFFSETS, _STATE = "__consumer_offsets", "__transaction_state"
_INTERNAL_PARTITIONS: Final = 4
_SETTINGS: Final = (
    # A busy machine holds brokers up for seconds. Who is dead is seen by its port long before.
    "--set=broker.session.timeout.ms=20000",
    "--set=group.initial.rebalance.delay.ms=0",
    "--set=group.min.session.timeout.ms=1000",
    f"--set=offsets.topic.num.partitions={_INTERNAL_PARTITIONS}",
    f"--set=transaction.state.log.num.partitions={_INTERNAL_PARTITIONS}",
)
_LANE: Final = Lane("confluent", ((), ()), 4)
_WAYS: Final = (Way("confluent", "cooperative-sticky"), CONSUMER)
_READ: Final = frozenset(("orders", index) for index in range(4))


def leader_of(admin: AdminClient, topic: str, index: int) -> int:
    """The broker that leads a partition; waits until there is one."""
    found = -1

    def is_led() -> bool:
        nonlocal found
        found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[index].leader
        return found >= 0

    wait_until(is_led, f"{topic}-{index} has a leader")
    return found


def wait_in_sync(admin: AdminClient) -> None:
    """Return when every replica of every topic is in sync."""

    def are_in_sync() -> bool:
        topics = admin.list_topics(timeout=PATIENCE_S).topics.values()
        partitions = [one for topic in topics for one in topic.partitions.values()]
        return all(one.leader >= 0 and len(one.isrs) == len(one.replicas) for one in partitions)

    wait_until(are_in_sync, "every replica is in sync")


def ask(bootstrap: str, question: Callable[[Client], Awaitable[Answer]]) -> Answer:
    """What a client is told that looks for coordinators and leaders until it finds them."""

    async def run() -> Answer:
        addresses = [Endpoint.parse(address) for address in bootstrap.split(",")]
        async with Client(addresses, timeout_s=PATIENCE_S) as client:
            return await question(client)

    return asyncio.run(run())


def committed(bootstrap: str, group: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The committed offsets of a group, from its coordinator of the moment."""
    tps = [TopicPartition(*partition) for partition in partitions]
    found = ask(bootstrap, lambda client: committed_offsets(client, group, tps))
    return {(tp.topic, tp.partition): offset for tp, offset in found.items() if offset is not None}


def progress(bootstrap: str) -> int:
    sources = [(_LANE.source, index) for index in range(_LANE.source_partitions)]
    return sum(committed(bootstrap, _LANE.group, sources).values())


def wait_progress(bootstrap: str, slots: list[Slot], count: int) -> None:
    """Return when so many records are transformed. However many: patience is for each more."""
    done = progress(bootstrap)

    def is_more() -> bool:
        for slot in slots:
            slot.tend()
        return progress(bootstrap) > done

    while done < count:
        wait_until(is_more, f"more than {done} of {count} records are transformed")
        done = progress(bootstrap)


def wait_decided(bootstrap: str, partitions: list[Partition]) -> None:
    """Return when no transaction is open: those of dead workers are aborted in time."""
    wanted = {TopicPartition(*partition): LATEST for partition in partitions}

    def ends(isolation: Isolation) -> dict[TopicPartition, Offset | None]:
        return ask(bootstrap, lambda client: list_offsets(client, wanted, isolation))

    wait_until(
        lambda: ends(Isolation.READ_COMMITTED) == ends(Isolation.READ_UNCOMMITTED),
        "every transaction has ended",
    )


def victims(admin: AdminClient, rng: Random) -> list[Callable[[], int]]:
    """Who is to be killed next, by what it does for the transactions under way."""
    group = shard_index(_LANE.group, _INTERNAL_PARTITIONS)
    transactional_id = f"{_LANE.client}-{rng.randrange(len(_LANE.workers))}"
    state = shard_index(transactional_id, _INTERNAL_PARTITIONS)
    target = rng.randrange(OUTPUT_PARTITIONS)
    return [
        lambda: leader_of(admin, _OFFSETS, group),
        lambda: leader_of(admin, _STATE, state),
        lambda: leader_of(admin, _LANE.target, target),
    ]


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * _KILLS + _TRANSACTIONS)
def test_transactions_over_all_brokers_are_exactly_once_whoever_of_them_dies(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    records = _TRANSACTIONS * (RECORDS_MAX + 1) // 2
    folder = tmp_path / "journals"
    folder.mkdir()
    targets = targets_of([_LANE])
    with cluster(tmp_path, *_SETTINGS) as running:
        admin = admin_of(running.bootstrap)
        create_topics(admin, {_LANE.source: {}}, partitions=_LANE.source_partitions)
        create_topics(admin, {_LANE.target: {}}, partitions=OUTPUT_PARTITIONS)
        read_from = {_LANE.source: fill(running.bootstrap, _LANE, records)}
        began_s = time.monotonic()
        with working(running.bootstrap, folder, rng.getrandbits(32), [_LANE]) as slots:
            wait_progress(running.bootstrap, slots, 1)
            target = admin.list_topics(_LANE.target, timeout=PATIENCE_S).topics[_LANE.target]
            preferred = {one.replicas[0] for one in target.partitions.values()}
            assert len(preferred) > 1, "transactions cross brokers"
            reader = Reader(running.bootstrap, folder, targets)
            reader.start()
            for number in range(_KILLS):
                wait_in_sync(admin)
                victim = running.brokers[victims(admin, rng)[number % 3]()]
                victim.kill()
                wait_progress(
                    running.bootstrap, slots, min(progress(running.bootstrap) + 20, records)
                )
                victim.start()
                rng.choice(slots).kill()
            wait_progress(running.bootstrap, slots, records)
        took_s = time.monotonic() - began_s
        wait_decided(running.bootstrap, targets)
        reader.stop()
        journals = Journals(folder)
        journals.read()
        seen = read_committed(running.bootstrap, targets)
        check(seen, journals, read_from)
        assert reader.early == []
        stop_all(running)
    transactions = len({one.transaction for one in seen})
    report(
        f"{transactions} transactions over three brokers, {_KILLS} kills of coordinators and"
        f" leaders in {took_s:.0f} s: {len(seen)} records, none lost, doubled, torn or early"
    )


@pytest.mark.slow
@pytest.mark.timeout(240 + 60 * _KILLS)
def test_a_group_whose_coordinator_dies_goes_on_and_keeps_what_it_committed(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    with cluster(tmp_path, *_SETTINGS) as running:
        admin = admin_of(running.bootstrap)
        create_topics(admin, {"orders": {}}, partitions=len(_READ))
        load = Load(running.bootstrap, "shop", sorted(_READ), is_idempotent=True, turn_s=0.05)
        subscription = Subscription(("orders",), "", _READ)
        groups = [
            Group(running.bootstrap, f"group-{number}", way, subscription)
            for number, way in enumerate(_WAYS)
        ]
        with groups_under_load(groups, load) as ends:
            kept = sum(
                _kill_coordinator(running, admin, groups, groups[number % len(groups)])
                for number in range(_KILLS)
            )
        written = read_written(running.bootstrap, [group.name for group in groups])
        stop_all(running)
    for group in groups:
        delivered = Deliveries.of(group.diaries())
        assert not [one for p in _READ if (one := delivered.missing(p, ends[p]))]
        assert not overlaps(group.diaries()), group
        assert not written[group.name].steps_back(), group
    report(f"{_KILLS} kills of a group's coordinator: {kept} commits looked for, 0 lost")


def _kill_coordinator(
    running: Cluster, admin: AdminClient, groups: list[Group], concerned: Group
) -> int:
    """Kill the broker that coordinates a group; how many of its commits were then looked for."""
    wait_in_sync(admin)
    index = shard_index(concerned.name, _INTERNAL_PARTITIONS)
    victim = running.brokers[leader_of(admin, _OFFSETS, index)]
    victim.kill()
    acked = {group.name: acknowledged(group.diaries()) for group in groups}
    for group in groups:
        found = committed(running.bootstrap, group.name, _READ)
        lost = {
            p: (offset, found.get(p))
            for p, offset in acked[group.name].items()
            if found.get(p, -1) < offset
        }
        assert not lost, f"{group}: acknowledged and lost: {lost}"
        group.wait_reading()
    victim.start()
    return sum(map(len, acked.values()))


def stop_all(running: Cluster) -> None:
    for broker in running.brokers:
        assert broker.stop() == 0
        assert "Traceback" not in broker.said()
