"""`ottla group` with share groups, against a real broker and a real consumer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ShareConsumer

from cli.processes import Ottla, RunningBroker, wait_until

NUMBERS = 10


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    """A topic with ten records, and settings of a group of the same name."""
    name: str = request.node.name.removeprefix("test_")[:60]
    ottla("topic", "create", name)
    ottla("produce", name, stdin="\n".join(map(str, range(NUMBERS))))
    ottla("config", "set", "group", name, "share.auto.offset.reset=earliest")
    return name


@pytest.fixture
def consumer(broker: RunningBroker, topic: str) -> Iterator[ShareConsumer]:
    """A member that has finished all records, and is still there."""
    member = ShareConsumer({"bootstrap.servers": broker.address, "group.id": topic})
    member.subscribe([topic])
    values: list[bytes | None] = []

    def has_all() -> bool:
        values.extend(message.value() for message in member.poll(0.5))
        return len(values) >= NUMBERS

    wait_until(has_all, "all records are delivered")
    member.commit_sync(30.0)
    yield member
    member.close()


def described(ottla: Ottla, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ottla("group", "describe", group, "--json").stdout)
    return found


def test_a_share_group_is_listed_and_described(
    ottla: Ottla, topic: str, consumer: ShareConsumer
) -> None:
    listed = [json.loads(line) for line in ottla("group", "list", "--json").stdout.splitlines()]
    assert ("Share", "share", "Stable") in {
        (one["type"], one["protocol"], one["state"]) for one in listed if one["group"] == topic
    }
    found = described(ottla, topic)
    assert (found["type"], found["state"], found["assignor"]) == ("Share", "Stable", "simple")
    assert [member["partitions"] for member in found["members"]] == [
        [{"topic": topic, "partition": 0}]
    ]
    (partition,) = found["partitions"]
    assert (partition["committed_offset"], partition["end_offset"]) == (NUMBERS, NUMBERS)
    assert found["lag"] == 0
    assert f"group {topic}: share, Stable, 1 member" in ottla("group", "describe", topic).stdout


def test_offsets_of_a_share_group_are_reset_and_deleted_once_it_is_empty(
    ottla: Ottla, topic: str, consumer: ShareConsumer
) -> None:
    reset = ("group", "reset-offsets", topic, "--topic", topic, "--to-offset", "4")
    refused = ottla(*reset)
    assert refused.returncode == 1
    assert "stop its consumers first" in refused.stderr
    consumer.close()
    wait_until(lambda: described(ottla, topic)["state"] == "Empty", "the member has left")
    assert ottla(*reset, "--dry-run").returncode == 0
    assert described(ottla, topic)["lag"] == 0
    assert ottla(*reset).returncode == 0
    assert described(ottla, topic)["lag"] == NUMBERS - 4
    wrong = ottla("group", "delete", topic, "--topic", f"{topic}:0", "--yes")
    assert (wrong.returncode, "by topic" in wrong.stderr) == (2, True)
    assert ottla("group", "delete", topic, "--topic", topic, "--yes").returncode == 0
    assert described(ottla, topic)["partitions"] == []
    assert ottla("group", "delete", topic, "--yes").returncode == 0
    assert ottla("group", "describe", topic).returncode == 1
