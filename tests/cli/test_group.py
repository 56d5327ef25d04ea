"""`ottla group` against a real broker and real consumers."""

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cli.processes import COMMAND, PATIENCE_S, Ottla, RunningBroker, wait_until
from compat.group_member import Member

PARTITIONS = 3

Describe = Callable[..., dict[str, Any]]


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own, with ten records in each of its three partitions."""
    name: str = request.node.name.removeprefix("test_")[:60]
    ottla("topic", "create", name, "--partitions", str(PARTITIONS))
    for index in range(PARTITIONS):
        lines = [json.dumps({"value": str(n), "timestamp": n * 1000}) for n in range(10)]
        ottla(
            *("produce", name, "--partition", str(index), "--format", "json"),
            stdin="\n".join(lines),
        )
    return name


@pytest.fixture
def group(topic: str, broker: RunningBroker) -> str:
    """A group that has committed offset 4 of partition 0 and offset 10 of partition 1."""
    name = f"readers-of-{topic}"
    commit(broker.address, name, TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 10))
    return name


@pytest.fixture
def described(ottla: Ottla) -> Describe:
    def describe(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ottla("group", "describe", name, "--json").stdout)
        return found

    return describe


def commit(address: str, group: str, *offsets: TopicPartition) -> None:
    """As librdkafka does it for a consumer that assigns partitions to itself."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


def committed(address: str, group: str, topic: str) -> list[int | None]:
    """As librdkafka reads it."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    found = consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], PATIENCE_S)
    consumer.close()
    return [tp.offset if tp.offset >= 0 else None for tp in found]


@contextmanager
def members(address: str, group: str, *topics: str, count: int = 1) -> Iterator[list[Member]]:
    """Librdkafka's consumers in their own processes, once each has its partitions."""
    started = [Member("confluent", address, group, *topics) for _ in range(count)]
    try:
        wait_until(lambda: sum(len(member.owned) for member in started) == PARTITIONS)
        wait_until(lambda: all(member.owned for member in started))
        yield started
    finally:
        for member in started:
            member.kill()


def owners_of(about: dict[str, Any]) -> dict[str, frozenset[tuple[str, int]]]:
    """What each member owns, as the command has it."""
    return {
        member["member_id"]: frozenset(
            (tp["topic"], tp["partition"]) for tp in member["partitions"]
        )
        for member in about["members"]
    }


def is_caught_up(about: dict[str, Any]) -> bool:
    """Whether every partition is committed up to its end."""
    partitions = about["partitions"]
    return len(partitions) == PARTITIONS and all(item["lag"] == 0 for item in partitions)


# list


def test_groups_are_listed_and_filtered(ottla: Ottla, broker: RunningBroker, group: str) -> None:
    def listed(*filters: str) -> dict[str, Any]:
        lines = ottla("group", "list", "--json", *filters).stdout.splitlines()
        return {item["group"]: item for item in map(json.loads, lines)}

    assert listed()[group] == {
        "group": group,
        "type": "Classic",
        "protocol": "",
        "state": "Empty",
        "coordinator": 0,
    }
    topic = group.removeprefix("readers-of-")
    with members(broker.address, f"live-{group}", topic):
        assert f"live-{group}" in listed("--state", "stable")
        assert group not in listed("--state", "STABLE")
        assert f"live-{group}" not in listed("--state", "empty")
        assert {group, f"live-{group}"} <= listed("--state", "empty", "--state", "Stable").keys()
        assert f"live-{group}" in listed("--protocol", "consumer")
        assert group not in listed("--protocol", "consumer")
        assert group in listed("--type", "classic")
        assert listed("--type", "consumer") == {}
    heading, *rows = ottla("group", "list").stdout.splitlines()
    assert heading.split() == ["GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"]
    assert [group, "Classic", "-", "Empty", "0"] in [row.split() for row in rows]


# describe


def test_lag_and_owner_of_each_partition_are_shown(
    ottla: Ottla, broker: RunningBroker, topic: str, described: Describe
) -> None:
    with members(broker.address, "owners", topic, count=2) as (first, second):
        wait_until(lambda: len(first.records) + len(second.records) == 10 * PARTITIONS)
        wait_until(lambda: is_caught_up(described("owners")))
        ottla("produce", topic, "--partition", "1", stdin="one more\n")
        wait_until(lambda: len(first.records) + len(second.records) == 10 * PARTITIONS + 1)
        wait_until(lambda: described("owners")["partitions"][1]["committed_offset"] == 11)

        def is_known_to_both() -> bool:
            """A rebalance is over for the group a moment before its members have said so."""
            mine, shown = {first.owned, second.owned}, owners_of(described("owners"))
            return set(shown.values()) == mine and sum(map(len, mine)) == PARTITIONS

        wait_until(is_known_to_both)
        about = described("owners")
        assert (about["type"], about["state"], about["protocol"]) == (
            "Classic",
            "Stable",
            "consumer",
        )
        assert about["assignor"] == "range"
        owners = owners_of(about)
        for partition in about["partitions"]:
            assert (partition["topic"], partition["partition"]) in owners[partition["member_id"]]
            assert partition["client_id"] == "rdkafka"
            assert partition["host"] == "127.0.0.1"
            assert partition["lag"] == 0

        about_line, heading, *rows = ottla("group", "describe", "owners").stdout.splitlines()
        assert about_line == "group owners: classic, Stable, 2 members, lag 0, coordinator 0"
        assert heading.split()[:5] == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG"]
        assert [row.split()[:5] for row in rows] == [
            [topic, "0", "10", "10", "0"],
            [topic, "1", "11", "11", "0"],
            [topic, "2", "10", "10", "0"],
        ]
        _, heading, *rows = ottla("group", "describe", "owners", "--members").stdout.splitlines()
        assert heading.split()[-2:] == ["PARTITIONS", "ASSIGNMENT"]
        assert sorted(row.split()[-1] for row in rows) == [f"{topic}:0,1", f"{topic}:2"]


def test_what_is_not_committed_and_not_owned_is_not_made_up(
    ottla: Ottla, group: str, topic: str, described: Describe
) -> None:
    about = described(group)
    assert (about["state"], about["lag"], about["members"]) == ("Empty", 6, [])
    rows = [(p["partition"], p["committed_offset"], p["lag"]) for p in about["partitions"]]
    assert rows == [(0, 4, 6), (1, 10, 0)]
    assert {p["member_id"] for p in about["partitions"]} == {None}
    _, _, *lines = ottla("group", "describe", group).stdout.splitlines()
    assert lines[0].split() == [topic, "0", "4", "10", "6", "-", "-", "-"]


def test_states_are_one_table_for_all_groups(ottla: Ottla, group: str) -> None:
    heading, *rows = ottla("group", "describe", "--state").stdout.splitlines()
    assert heading.split()[:3] == ["GROUP", "TYPE", "STATE"]
    found = [row.split() for row in rows]
    assert [group, "Classic", "Empty", "-", "-", "0", "0", "6"] in found


def test_one_missing_group_does_not_hide_the_others(ottla: Ottla, group: str) -> None:
    answer = ottla("group", "describe", "missing", group, "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["group"] == group
    assert answer.stderr == (
        "ottla: group missing: it does not exist; `ottla group list` shows the groups that exist\n"
    )


def test_a_table_is_drawn_on_a_terminal(broker: RunningBroker, group: str) -> None:
    screen, terminal = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "group", "describe", group],
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "OTTLA_BROKER": broker.address, "COLUMNS": "160"},
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(terminal)
    shown = os.read(screen, 65_536).decode()
    os.close(screen)
    assert done.returncode == 0, shown
    assert "─" in shown


# reset-offsets


@pytest.mark.parametrize(
    ("target", "offsets"),
    [
        (["--to-earliest"], [0, 0, 0]),
        (["--to-latest"], [10, 10, 10]),
        (["--to-offset", "7"], [7, 7, 7]),
        (["--to-time", "1970-01-01T00:00:03Z"], [3, 3, 3]),
        (["--by-duration", "1h"], [10, 10, 10]),
        (["--shift-by", "-3"], [1, 7, None]),
        (["--to-current"], [4, 10, 10]),
    ],
    ids=["earliest", "latest", "offset", "time", "duration", "shift", "current"],
)
def test_offsets_are_reset_and_librdkafka_sees_it(
    target: list[str],
    offsets: list[int | None],
    ottla: Ottla,
    broker: RunningBroker,
    request: pytest.FixtureRequest,
) -> None:
    topic = f"reset-{request.node.callspec.id}"
    ottla("topic", "create", topic, "--partitions", str(PARTITIONS))
    for index in range(PARTITIONS):
        lines = [json.dumps({"value": str(n), "timestamp": n * 1000}) for n in range(10)]
        ottla(
            *("produce", topic, "--partition", str(index), "--format", "json"),
            stdin="\n".join(lines),
        )
    commit(broker.address, topic, TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 10))
    asked = ["group", "reset-offsets", topic, "--topic", topic, *target, "--json"]

    planned = ottla(*asked, "--dry-run")
    assert planned.returncode == 0
    assert committed(broker.address, topic, topic) == [4, 10, None]

    done = ottla(*asked)
    assert done.returncode == 0
    assert committed(broker.address, topic, topic) == offsets
    for said, is_done in ((planned, False), (done, True)):
        rows = [json.loads(line) for line in said.stdout.splitlines()]
        assert [row["current_offset"] for row in rows] == [4, 10, None]
        assert [row["new_offset"] for row in rows] == offsets
        assert [row["committed"] for row in rows] == [
            is_done and offset is not None for offset in offsets
        ]


def test_a_consumer_goes_on_from_a_reset_offset(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    ottla("group", "reset-offsets", group, "--topic", topic, "--to-offset", "8")
    with members(broker.address, group, topic) as (member,):
        wait_until(lambda: len(member.records) == 2 * PARTITIONS)
        assert set(member.values) == {"8", "9"}


def test_an_offset_outside_of_the_log_is_moved_with_a_note(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    done = ottla("group", "reset-offsets", group, "--all-topics", "--shift-by", "-7")
    assert done.returncode == 0
    heading, first, second = done.stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "CURRENT", "NEW", "NOTE"]
    assert first.endswith("not -3: the log begins at 0")
    assert second.split() == [topic, "1", "10", "3"]
    assert done.stderr == f"group {group}: 2 offsets set\n"
    assert committed(broker.address, group, topic) == [0, 3, None]


def test_only_some_partitions_are_reset(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    done = ottla(
        *("group", "reset-offsets", group, "--topic", f"{topic}:2", "--topic", f"{topic}:0"),
        "--to-latest",
    )
    assert done.returncode == 0
    assert committed(broker.address, group, topic) == [10, 10, 10]


def test_a_group_with_members_is_not_reset(
    ottla: Ottla, broker: RunningBroker, topic: str, described: Describe
) -> None:
    with members(broker.address, "busy", topic) as (member,):
        wait_until(lambda: len(member.records) == 30 and is_caught_up(described("busy")))
        refused = ottla("group", "reset-offsets", "busy", "--topic", topic, "--to-earliest")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == (
            "ottla: group busy: it is in use (Stable, 1 member): stop its consumers first;"
            " nothing was changed\n"
        )
        assert is_caught_up(described("busy"))


def test_a_group_is_made_by_resetting_a_topic_but_not_by_resetting_all(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    missing = ottla("group", "reset-offsets", f"new-{topic}", "--all-topics", "--to-latest")
    assert missing.returncode == 1
    assert "it does not exist" in missing.stderr
    made = ottla("group", "reset-offsets", f"new-{topic}", "--topic", topic, "--to-latest")
    assert made.returncode == 0
    assert f"group new-{topic} does not exist yet" in made.stderr
    assert committed(broker.address, f"new-{topic}", topic) == [10, 10, 10]


# delete


def test_a_group_is_deleted_with_all_it_committed(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    done = ottla("group", "delete", group, "missing")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"group {group} deleted",
        "ottla: group missing: it does not exist",
    ]
    assert committed(broker.address, group, topic) == [None, None, None]


def test_offsets_of_a_topic_are_deleted_and_the_rest_stays(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    done = ottla("group", "delete", group, "--topic", f"{topic}:0")
    assert (done.returncode, done.stderr) == (0, f"group {group}: offsets of {topic}:0 deleted\n")
    assert committed(broker.address, group, topic) == [None, 10, None]
    again = ottla("group", "delete", group, "--topic", f"{topic}:0")
    assert again.returncode == 1
    assert again.stderr == f"ottla: group {group}, topic {topic}: no offset is committed\n"
    assert ottla("group", "delete", group, "--topic", topic).returncode == 0
    assert committed(broker.address, group, topic) == [None, None, None]


def test_what_is_in_use_is_not_deleted(
    ottla: Ottla, broker: RunningBroker, topic: str, described: Describe
) -> None:
    with members(broker.address, "in-use", topic):
        wait_until(lambda: is_caught_up(described("in-use")))
        whole = ottla("group", "delete", "in-use")
        assert whole.returncode == 1
        assert whole.stderr == "ottla: group in-use: it has members: stop them first\n"
        part = ottla("group", "delete", "in-use", "--topic", topic)
        assert part.returncode == 1
        assert part.stderr.splitlines() == [
            f"ottla: group in-use, {topic}-{n}: members of the group are reading the topic"
            for n in range(PARTITIONS)
        ]


# what makes no sense


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--state", "sleepy"], "--state 'sleepy': choose one of Empty, "),
        (["list", "--type", "kafka"], "--type 'kafka': choose one of Classic, Consumer"),
        (["describe", "g", "--members", "--state"], "--members and --state exclude each other"),
        (["reset-offsets", "g", "--topic", "t"], "give exactly one of "),
        (["reset-offsets", "g", "--to-earliest"], "name the topics: "),
        (["reset-offsets", "g", "--topic", "t", "--all-topics", "--to-latest"], "name the topics"),
        (
            ["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-current"],
            "give exactly one of ",
        ),
        (["reset-offsets", "g", "--topic", "t:x", "--to-latest"], "is not TOPIC or TOPIC:0,1,2"),
        (
            ["reset-offsets", "g", "--topic", "t", "--to-time", "noon"],
            "not a position in a log: 'noon'",
        ),
        (["reset-offsets", "g", "--topic", "t", "--by-duration", "2"], "not a duration: '2'"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["delete", "g", "--topic", "t:"], "is not TOPIC or TOPIC:0,1,2"),
    ],
)
def test_nonsense_never_reaches_the_broker(
    arguments: list[str], problem: str, ottla: Ottla
) -> None:
    answer = ottla("--broker", "127.0.0.1:1", "group", *arguments)
    assert answer.returncode == 2, answer
    assert answer.stderr.startswith("ottla: ")
    assert problem in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_partition_or_topic_that_is_not_there_changes_nothing(
    ottla: Ottla, broker: RunningBroker, group: str, topic: str
) -> None:
    wrong = ottla("group", "reset-offsets", group, "--topic", f"{topic}:0,3", "--to-latest")
    assert wrong.returncode == 2
    assert wrong.stderr == f"ottla: topic {topic} has no partition 3, only 0 to 2\n"
    missing = ottla("group", "reset-offsets", group, "--topic", "missing", "--to-latest")
    assert missing.returncode == 1
    assert missing.stderr.startswith("ottla: topic missing: it does not exist")
    assert committed(broker.address, group, topic) == [4, 10, None]


def test_without_a_broker_every_command_says_so_in_one_line(ottla: Ottla) -> None:
    for arguments in (
        ["list"],
        ["describe"],
        ["reset-offsets", "g", "--topic", "t", "--to-latest"],
        ["delete", "g"],
    ):
        answer = ottla("--broker", "127.0.0.1:1", "group", *arguments)
        assert answer.returncode == 1, answer
        assert "no broker can be reached" in answer.stderr
        assert answer.stderr.count("\n") == 1, answer.stderr
