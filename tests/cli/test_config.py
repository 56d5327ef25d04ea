"""`ottla config get`, `set` and `unset` against a real broker."""

import json
from collections.abc import Mapping

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from cli.processes import PATIENCE_S, Ottla, RunningBroker


def shown(ottla: Ottla, *arguments: str) -> dict[str, tuple[str | None, str]]:
    """Value and source of each setting, by name."""
    done = ottla("config", "get", *arguments, "--json")
    assert done.returncode == 0, done
    rows: list[Mapping[str, str]] = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def test_a_topic_setting_goes_from_its_default_to_a_value_and_back(
    broker: RunningBroker, ottla: Ottla
) -> None:
    ottla("topic", "create", "configured")
    before = shown(ottla, "topic", "configured")
    assert before["retention.ms"][1] == "default"
    done = ottla("config", "set", "topic", "configured", "retention.ms=5000", "segment.bytes=20000")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "topic configured: retention.ms=5000\ntopic configured: segment.bytes=20000\n"
    )
    names = ("retention.ms", "segment.bytes")
    assert shown(ottla, "topic", "configured", *names) == {
        "retention.ms": ("5000", "topic"),
        "segment.bytes": ("20000", "topic"),
    }
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configured")
    (answer,) = admin.describe_configs([resource]).values()
    assert answer.result(PATIENCE_S)["retention.ms"].value == "5000"
    done = ottla("config", "unset", "topic", "configured", *names, "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"scope": "topic", "resource": "configured", "name": name, "value": None} for name in names
    ]
    assert shown(ottla, "topic", "configured") == before


def test_settings_are_changed_together_or_not_at_all(ottla: Ottla) -> None:
    ottla("topic", "create", "all-or-none")
    done = ottla("config", "set", "topic", "all-or-none", "retention.ms=5000", "segment.bytes=few")
    assert done.returncode == 2
    assert shown(ottla, "topic", "all-or-none", "retention.ms")["retention.ms"][1] == "default"


def test_a_value_says_whether_it_is_one_brokers_all_brokers_or_the_starts(ottla: Ottla) -> None:
    name = "group.initial.rebalance.delay.ms"
    assert shown(ottla, "broker", "0", name) == {name: ("0", "start")}
    assert shown(ottla, "broker", "0", "max.groups")["max.groups"][1] == "default"
    for resource, source in (("all", "all brokers"), ("0", "broker")):
        assert ottla("config", "set", "broker", resource, "max.groups=77").returncode == 0
        assert shown(ottla, "broker", "0", "max.groups") == {"max.groups": ("77", source)}
    assert shown(ottla, "broker", "all") == {"max.groups": ("77", "all brokers")}
    for resource in ("all", "0"):
        assert ottla("config", "unset", "broker", resource, "max.groups").returncode == 0
    assert shown(ottla, "broker", "all") == {}
    assert shown(ottla, "broker", "0", "max.groups")["max.groups"][1] == "default"


def test_people_get_a_table_in_the_order_of_names(ottla: Ottla) -> None:
    ottla("topic", "create", "tabled")
    heading, *rows = ottla("config", "get", "topic", "tabled").stdout.splitlines()
    assert heading.split() == ["NAME", "VALUE", "SOURCE"]
    names = [row.split()[0] for row in rows]
    assert names == sorted(names)
    assert max(map(len, [heading, *rows])) <= 100


@pytest.mark.parametrize("command", [["get"], ["set"], ["unset"]])
def test_a_group_is_named_in_what_the_broker_says(ottla: Ottla, command: list[str]) -> None:
    """Whether a broker has settings of groups or refuses them, the answer is about the group."""
    more = {"get": [], "set": ["nonsense=1"], "unset": ["nonsense"]}[command[0]]
    done = ottla("config", *command, "group", "configured-group", *more)
    if done.returncode:
        assert done.stderr.startswith("ottla: group configured-group")
        assert done.stderr.count("\n") == 1
    else:
        assert command == ["get"]
