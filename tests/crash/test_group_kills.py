"""`kill -9` of the broker while groups rebalance and commit."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from compat.raw import connected
from crash.group_judgement import Deliveries, Partition, acknowledged, overlaps
from crash.group_members import Group, Subscription, groups_under_load, ways
from crash.load import Load
from crash.offsets_log import read_written
from crash.processes import BrokerProcess, broker_process
from crash.topics import admin_of, create_topics
from ottla.errors import ErrorCode
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup

_KILLS: Final = int(os.environ.get("OTTLA_GROUP_KILLS", "3"))
_PARTITIONS: Final[frozenset[Partition]] = frozenset(("orders", index) for index in range(4))
_REPEATED_MAX: Final = 0.02
_ASKED_MAX: Final = 200


@pytest.mark.slow
@pytest.mark.timeout(30 * _KILLS + 120)
def test_groups_go_on_after_kills_and_no_acknowledged_commit_is_lost(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    settings = (
        "--set=group.initial.rebalance.delay.ms=200",
        "--set=offsets.topic.num.partitions=4",
    )
    with broker_process(tmp_path / "data", *settings) as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"orders": {}}, partitions=len(_PARTITIONS))
        load = Load(broker.address, "shop", sorted(_PARTITIONS), is_idempotent=True, turn_s=0.05)
        subscription = Subscription(("orders",), "", _PARTITIONS)
        groups = [
            Group(broker.address, f"group-{number}", way, subscription)
            for number, way in enumerate(ways())
        ]
        began_s = time.monotonic()
        with groups_under_load(groups, load) as ends:
            commits = sum(_crash_once(broker, groups, rng) for _ in range(_KILLS))
        took_s = time.monotonic() - began_s
        written = read_written(broker.address, [group.name for group in groups])
        assert broker.stop() == 0
    for group in groups:
        delivered = Deliveries.of(group.diaries())
        assert not [
            delivered.missing(p, ends[p]) for p in _PARTITIONS if delivered.missing(p, ends[p])
        ]
        assert not overlaps(group.diaries()), group
        assert not written[group.name].steps_back(), group
        assert delivered.repeated <= _REPEATED_MAX * delivered.total, group
    rebalances = sum(len(one.generations) for one in written.values())
    report(
        f"{_KILLS} kills of the broker in {took_s:.0f} s, {rebalances} rebalances of {len(groups)}"
        f" groups: {commits} acknowledged commits looked for, 0 lost"
    )


def _crash_once(broker: BrokerProcess, groups: list[Group], rng: Random) -> int:
    """Kill at a random moment of some groups' rebalances; how many commits were then looked for."""
    changed = [group for group in groups if rng.random() < 0.6]
    for group in changed:
        _begin_change(group, rng)
    time.sleep(rng.uniform(0, 1.5))  # chance decides about the moment; nothing waits for anything
    broker.kill()
    acked = {group.name: acknowledged(group.diaries()) for group in groups}
    broker.start()
    for group in groups:
        _check_kept(broker.address, group.name, acked[group.name])
    for group in groups:
        group.wait_shared()
        group.wait_reading()
    return sum(len(offsets) for offsets in acked.values())


def _begin_change(group: Group, rng: Random) -> None:
    """Somebody comes, or goes without a word of farewell being waited for."""
    if len(group.living) < 3:
        group.join()
    else:
        group.begin_leave(rng.choice(group.living))


def _check_kept(address: str, group: str, acked: dict[Partition, int]) -> None:
    """What members were told before the kill is what the broker says after it, or more."""
    found = _committed(address, group)
    lost = {p: (offset, found.get(p)) for p, offset in acked.items() if found.get(p, -1) < offset}
    assert not lost, f"{group}: acknowledged and lost: {lost}"


def _committed(address: str, group: str) -> dict[Partition, int]:
    wanted = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    with connected(address) as raw:
        for _ in range(_ASKED_MAX):
            (answer,) = raw.ask(wanted, version=8).groups
            if answer.error_code == ErrorCode.NONE:
                return {
                    (topic.name, one.partition_index): one.committed_offset
                    for topic in answer.topics
                    for one in topic.partitions
                }
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            time.sleep(0.05)
    raise AssertionError(f"{group} is still being read")
