"""Lag of real consumers, as Prometheus scrapes it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.processes import call_ottla, wait_until
from compat.group_member import Member
from compat.served import ServedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "2"}
    served = ServedBroker(tmp_path / "data", settings)
    served.start()
    yield served
    served.stop()


def test_lag_rises_with_the_log_and_falls_with_commits(broker: ServedBroker) -> None:
    def write(count: int) -> None:
        lines = "line\n" * count
        arguments = ("produce", "orders", "--partition", "1")
        assert call_ottla(*arguments, broker=broker.address, stdin=lines).returncode == 0

    def lag(partition: int) -> float:
        return broker.metric(
            "ottla_group_lag", group="billing", partition=str(partition), topic="orders"
        )

    def state(name: str) -> float:
        return broker.metric("ottla_group_state", group="billing", state=name)

    write(10)
    member = Member("confluent", broker.address, "billing", "orders")
    try:
        wait_until(lambda: len(member.records) == 10, "all is read")
        # What it printed it has committed before it asks for more.
        write(1)
        wait_until(lambda: len(member.records) == 11, "one more is read")
        assert lag(1) <= 1
        assert broker.metric("ottla_group_members", group="billing") == 1
        assert state("Stable") == 1
        assert broker.metric("ottla_groups", state="Stable") == 1
        member.leave()
    finally:
        member.kill()
    wait_until(lambda: lag(1) == 0, "its last commit")
    committed = {"group": "billing", "partition": "1", "topic": "orders"}
    assert broker.metric("ottla_group_committed_offset", **committed) == 11
    assert broker.metric("ottla_group_members", group="billing") == 0
    assert state("Empty") == 1

    write(5)
    assert lag(1) == 5
    assert broker.metric("ottla_group_topic_lag", group="billing", topic="orders") == 5
    assert broker.metric("ottla_group_series_left_out") == 0

    broker.stop()
    broker.start()
    wait_until(lambda: _knows_lag(broker), "the groups are loaded")
    assert lag(1) == 5, "nobody has asked for the group since the restart"


def _knows_lag(broker: ServedBroker) -> bool:
    try:
        broker.metric("ottla_group_topic_lag", group="billing", topic="orders")
    except AssertionError:
        return False
    return True
