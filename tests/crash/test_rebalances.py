"""Groups whose members come, go, die, freeze and come back, while records keep coming.

How the ownership of partitions is judged, above all that of a frozen member that wakes up, is said
in group_judgement.py. How far groups have committed is read from the coordinator's own log, so
that nothing depends on what a client believes.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crash.group_judgement import (
    Deliveries,
    overlaps,
    refused_after_waking,
    zombie_commits,
)
from crash.group_members import SESSION_MS, Group, Subscription, groups_of, ways
from crash.load import Load, Partition, ends_of
from crash.offsets_log import Written, read_written
from crash.processes import broker_process
from crash.topics import admin_of, create_topics
from ottla.config import BrokerConfig, settings_of

_ROUNDS: Final = int(os.environ.get("OTTLA_REBALANCE_ROUNDS", "1"))  # 4 is the full size
_REBALANCES_MIN: Final = 7 * _ROUNDS * len(ways())
_REPEATED_MAX: Final = 0.02

_ORDERS: Final[frozenset[Partition]] = frozenset(("orders", index) for index in range(4))
_RETURNS: Final[frozenset[Partition]] = frozenset(("returns", index) for index in range(2))
_SUBSCRIPTIONS: Final = (  # each way has the one of its place in the list of ways
    Subscription((), "(orders|returns)$", _ORDERS | _RETURNS),
    Subscription(("returns",), "", _RETURNS),  # soon there are more members than partitions
    Subscription(("orders", "returns"), "", _ORDERS | _RETURNS),
)
_BROKER_DECIDES: Final = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "300",
}


@pytest.mark.slow
@pytest.mark.timeout(240 * _ROUNDS + 60)
def test_rebalances_lose_no_record_and_share_no_partition(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    with broker_process(tmp_path / "data", *_settings()) as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"orders": {}}, partitions=len(_ORDERS))
        create_topics(admin, {"returns": {}}, partitions=len(_RETURNS))
        load = Load(
            broker.address, "shop", sorted(_ORDERS | _RETURNS), is_idempotent=True, turn_s=0.05
        )
        groups = [
            Group(
                broker.address,
                f"group-{number}",
                way,
                _SUBSCRIPTIONS[number % len(_SUBSCRIPTIONS)],
            )
            for number, way in enumerate(ways())
        ]
        began_s = time.monotonic()
        with groups_of(groups):
            load.start()
            try:
                _shake(groups, rng)
            finally:
                load.stop()
            ends = ends_of(load)
            for group in groups:
                group.wait_committed(ends)
                group.leave_all()
        took_s = time.monotonic() - began_s
        written = read_written(broker.address, [group.name for group in groups])
        assert broker.stop() == 0
    assert not load.failed
    for group in groups:
        _judge(group, ends, written[group.name])
    rebalances = sum(len(written[group.name].generations) for group in groups)
    report(_figures(groups, rebalances, took_s))
    assert rebalances >= _REBALANCES_MIN


def _settings() -> Iterator[str]:
    yield "--set=group.initial.rebalance.delay.ms=500"
    yield "--set=offsets.topic.num.partitions=4"
    known = {setting.name for _, setting in settings_of(BrokerConfig)}
    for name, value in _BROKER_DECIDES.items():
        if name in known:
            yield f"--set={name}={value}"


def _shake(groups: list[Group], rng: Random) -> None:
    """All groups at once, each with its own chance."""
    chances = [Random(rng.random()) for _ in groups]
    with ThreadPoolExecutor(len(groups)) as stage:
        for done in [
            stage.submit(_live, group, chance)
            for group, chance in zip(groups, chances, strict=True)
        ]:
            done.result()


def _live(group: Group, rng: Random) -> None:
    """Two members to begin with, one of them static; then everything that can happen, shuffled."""
    group.join()
    group.join(instance="the-static-one")
    group.wait_shared()
    silence = _freeze if group.way.wakes_honest else _join_and_kill
    for _ in range(_ROUNDS):
        events = [_join_and_leave, _join_and_leave, _join_and_kill, silence, _restart_static]
        rng.shuffle(events)
        for happen in events:
            group.wait_reading()
            happen(group, rng)
            group.wait_shared()


def _join_and_leave(group: Group, rng: Random) -> None:
    newcomer = group.join()
    group.wait_shared()
    if rng.random() < 0.5:
        group.wait_reading()
    group.leave(rng.choice([newcomer, *(m for m in group.living if not m.instance)]))


def _join_and_kill(group: Group, rng: Random) -> None:
    group.join()
    group.wait_shared()
    group.kill(rng.choice([member for member in group.living if not member.instance]))


def _freeze(group: Group, rng: Random) -> None:
    """Long enough to be missed; then it wakes up and believes that nothing has happened."""
    frozen = rng.choice([member for member in group.living if member.owned])
    frozen.freeze()
    others = [member for member in group.living if member is not frozen]
    group.wait_shared(*others)
    frozen.thaw()


def _restart_static(group: Group, rng: Random) -> None:
    (static,) = (member for member in group.living if member.instance)
    group.restart(static)


def _judge(group: Group, ends: dict[Partition, int], written: Written) -> None:
    diaries = group.diaries()
    delivered = Deliveries.of(diaries)
    for partition in group.partitions:
        missing = delivered.missing(partition, ends[partition])
        assert not missing, f"{group}: {partition}: {len(missing)} never came: {missing[:5]}"
        assert written.commits[partition][-1] == ends[partition], group
    shared = overlaps(diaries)
    assert not shared, f"{group}: two owners at once: {shared[:3]}"
    undead = [entry for diary in diaries for entry in zombie_commits(diary)]
    assert not undead, f"{group}: a zombie could commit: {undead[:3]}"
    back = written.steps_back()
    assert not back, f"{group}: committed offsets went back: {back[:3]}"
    assert delivered.repeated <= _REPEATED_MAX * delivered.total, (
        f"{group}: {delivered.repeated} of {delivered.total} deliveries were repetitions"
    )


def _figures(groups: list[Group], rebalances: int, took_s: float) -> str:
    delivered = [Deliveries.of(group.diaries()) for group in groups]
    total, repeated = sum(d.total for d in delivered), sum(d.repeated for d in delivered)
    diaries = [diary for group in groups for diary in group.diaries()]
    refused = sum(refused_after_waking(diary) for diary in diaries)
    return (
        f"{rebalances} rebalances of {len(groups)} groups in {took_s:.0f} s, {len(diaries)}"
        f" processes: {total} deliveries, none missing, {repeated} repeated"
        f" ({100 * repeated / total:.2f} %); no partition with two owners; {refused} commits of"
        " members that had been frozen were refused, none accepted; no committed offset went back"
    )
