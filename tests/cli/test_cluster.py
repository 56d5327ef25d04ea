"""`ottla cluster`, `ottla broker`, `ottla rebalance` and `ottla topic trim` against a real broker.

Moves between brokers are in `crash/test_elastic.py`.
"""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from cli.processes import PATIENCE_S, Ottla, RunningBroker


def test_the_cluster_is_what_other_clients_see(broker: RunningBroker, ottla: Ottla) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    described = admin.describe_cluster().result(PATIENCE_S)
    info = json.loads(ottla("cluster", "info", "--json").stdout)
    assert info["id"] == described.cluster_id
    assert info["controller"] == described.controller.id
    assert info["brokers"] == [node.id for node in described.nodes]
    version = info["features"]["transaction.version"]
    assert version["min_supported"] <= version["level"] <= version["max_supported"]
    first, heading, *rows = ottla("cluster", "info").stdout.splitlines()
    assert first == f"cluster {described.cluster_id}  controller 0  brokers 0"
    assert heading.split() == ["FEATURE", "LEVEL", "SUPPORTED"]
    assert {row.split()[0] for row in rows} == set(info["features"])


def test_brokers_are_listed_with_the_address_that_they_advertise(
    broker: RunningBroker, ottla: Ottla
) -> None:
    before = json.loads(ottla("broker", "list", "--json").stdout)
    ottla("topic", "create", "listed", "--partitions", "5")
    after = json.loads(ottla("broker", "list", "--json").stdout)
    assert after == {
        "id": 0,
        "address": broker.address,
        "state": "alive",
        "wanted": "active",
        "rack": None,
        "machine": after["machine"],
        "is_controller": True,
        "leaders": before["leaders"] + 5,
        "replicas": before["replicas"] + 5,
    }
    heading, row = ottla("broker", "list").stdout.splitlines()
    headings = "ID ADDRESS STATE WANTED RACK MACHINE CONTROLLER LEADERS REPLICAS"
    assert heading.split() == headings.split()
    assert row.split()[:5] == ["0", broker.address, "alive", "active", "none"]


def test_one_broker_is_a_healthy_cluster_and_has_nothing_to_move(
    broker: RunningBroker, ottla: Ottla
) -> None:
    ottla("topic", "create", "still", "--partitions", "2")
    done = ottla("cluster", "status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["health"], found["alive"]) == (0, "healthy", [0])
    assert found["partitions"] >= 2
    assert not any(found[name] for name in ("dead", "draining", "offline", "moving"))
    lines = ottla("cluster", "status").stdout.splitlines()
    assert lines[0] == f"cluster {found['id']} is healthy  controller 0"
    assert lines[1] == "brokers: 0 alive"
    done = ottla("rebalance", "--execute")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "replicas and leaders are spread evenly: nothing to move\n"
    assert json.loads(ottla("topic", "reassign", "--json").stdout) == {
        "version": 1,
        "partitions": [],
    }
    assert ottla("topic", "elect", "still").stderr == "0 leaders elected\n"
    assert ottla("topic", "reassign", "still", "--cancel").stderr == "0 moves cancelled\n"


def test_moves_in_a_file_are_those_of_kafkas_tool(ottla: Ottla, tmp_path: Path) -> None:
    ottla("topic", "create", "moved-by-file", "--partitions", "2")
    moves = [{"topic": "moved-by-file", "partition": index, "replicas": [0]} for index in range(2)]
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    done = ottla("topic", "reassign", "--file", str(file), "--follow")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "2 partitions moved")
    file.write_text(json.dumps({"version": 1, "partitions": [{**moves[0], "replicas": [0, 7]}]}))
    done = ottla("topic", "reassign", "--file", str(file))
    assert (done.returncode, done.stderr) == (
        1,
        "ottla: moved-by-file-0: there is no broker 7: choose from [0]\n",
    )


def test_no_broker_is_worse_than_one(ottla: Ottla) -> None:
    done = ottla("cluster", "status", "--broker", "127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("ottla: no broker can be reached")


@pytest.fixture
def trimmed(request: pytest.FixtureRequest, ottla: Ottla) -> str:
    """A topic of two partitions with records 0 to 3 in each, a second apart."""
    topic = re.sub(r"\W", "-", f"trimmed-{request.node.name}")
    ottla("topic", "create", topic, "--partitions", "2")
    for partition in range(2):
        lines = [
            json.dumps({"value": str(n), "timestamp": n * 1000, "partition": partition})
            for n in range(4)
        ]
        ottla("produce", topic, "--format", "json", stdin="\n".join(lines))
    return topic


def left(ottla: Ottla, topic: str) -> list[str]:
    printed = ottla("consume", topic, "--format", "%p:%v\\n").stdout
    return sorted(printed.split())


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ("0", "0123"),
        ("2", "23"),
        ("-1", "3"),
        ("end", ""),
        ("1970-01-01T00:00:03Z", "3"),
        ("-1h", ""),
    ],
)
def test_records_before_a_position_are_deleted(
    ottla: Ottla, trimmed: str, before: str, kept: str
) -> None:
    done = ottla("topic", "trim", trimmed, "--before", before, "--yes", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {
            "topic": trimmed,
            "partition": partition,
            "previous_start_offset": 0,
            "start_offset": 4 - len(kept),
            "end_offset": 4,
        }
        for partition in range(2)
    ]
    assert left(ottla, trimmed) == [f"{p}:{value}" for p in range(2) for value in kept]


def test_only_the_named_partition_is_trimmed(ottla: Ottla, trimmed: str) -> None:
    done = ottla("topic", "trim", trimmed, "--before", "3", "--partition", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert [row.split() for row in done.stdout.splitlines()] == [
        ["PARTITION", "START", "NEW", "START", "END"],
        ["1", "0", "3", "4"],
    ]
    assert left(ottla, trimmed) == ["0:0", "0:1", "0:2", "0:3", "1:3"]


def test_an_offset_beyond_an_end_deletes_nothing_at_all(ottla: Ottla, trimmed: str) -> None:
    ottla("produce", trimmed, "--partition", "0", stdin="more\n")
    done = ottla("topic", "trim", trimmed, "--before", "5")
    assert done.returncode == 1
    assert done.stderr == (
        f"ottla: {trimmed}-1: it ends at offset 4, before 5; nothing was deleted\n"
    )
    assert len(left(ottla, trimmed)) == 9
