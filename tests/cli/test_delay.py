"""`ottla delay` and `ottla schedule` against a real broker."""

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cli.processes import (
    Ottla,
    RunningBroker,
    call_ottla,
    run_ottla,
    start_broker,
    wait_until,
)
from cli.test_serve_many import supervised

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions whose records may wait."""
    name: str = request.node.name.removeprefix("test_")[:60]
    made = ottla("topic", "create", name, "--partitions", "3", "--config", "delay.enable=true")
    assert made.returncode == 0, made
    return name


def delay(ottla: Ottla, topic: str, value: str, delay_ms: int, partition: int, key: str) -> None:
    """Send one record that waits."""
    done = ottla(
        *("produce", topic, "--partition", str(partition), "--key", key),
        *("--header", f"ottla.delay-ms={delay_ms}"),
        stdin=f"{value}\n",
    )
    assert done.returncode == 0, done


def listed(ottla: Ottla, topic: str, *more: str) -> Any:
    done = ottla("delay", "list", topic, "--json", *more)
    assert done.returncode == 0, done
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def tickets(ottla: Ottla, topic: str, *more: str) -> list[str]:
    return [one["ticket"] for one in listed(ottla, topic, *more)["records"]]


def test_what_waits_is_listed_by_due_time(ottla: Ottla, topic: str) -> None:
    for number, partition in enumerate((2, 0, 1, 0, 2)):
        delay(ottla, topic, "v", (5 - number) * HOUR_MS, partition, f"key-{number % 2}")
    assert tickets(ottla, topic) == ["2:1", "0:1", "1:0", "0:0", "2:0"]
    assert tickets(ottla, topic, "--limit", "2") == ["2:1", "0:1"]
    assert tickets(ottla, topic, "--partition", "0") == ["0:1", "0:0"]
    assert tickets(ottla, topic, "--key", "key-0") == ["2:1", "1:0", "2:0"]
    assert tickets(ottla, topic, "--key", "key-0", "--limit", "1") == ["2:1"]
    assert tickets(ottla, topic, "--key", "key") == []
    assert tickets(ottla, topic, "--due-before", "2h30m") == ["2:1", "0:1"]
    assert tickets(ottla, topic, "--due-before", "2026-01-01T00:00Z") == []
    found = listed(ottla, topic)
    assert [(one["partition"], one["waiting"]) for one in found["partitions"]] == [
        (0, 2),
        (1, 1),
        (2, 2),
    ]
    first = found["records"][0]
    assert (first["key"], first["schedule"], first["readable"]) == ("key-0", None, True)
    assert 0 < first["in_ms"] <= HOUR_MS
    done = ottla("delay", "list", topic)
    assert [line.split()[0] for line in done.stdout.splitlines()][1:] == tickets(ottla, topic)
    assert done.stderr.splitlines() == [
        "partition 0: 2 waiting",
        "partition 1: 1 waiting",
        "partition 2: 2 waiting",
    ]


def test_pages_end_where_the_limit_says(ottla: Ottla, broker: RunningBroker, topic: str) -> None:
    """More records than a page has, in three partitions, due in another order than sent."""
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(2000):
        delay_ms = HOUR_MS + number * 7919 % 2000 * 1000
        producer.produce(
            topic, b"v", partition=number % 3, headers={"ottla.delay-ms": str(delay_ms).encode()}
        )
    assert producer.flush(60) == 0
    found = listed(ottla, topic, "--limit", "5000")["records"]
    assert len({one["ticket"] for one in found}) == 2000
    assert [one["due_ms"] for one in found] == sorted(one["due_ms"] for one in found)
    assert tickets(ottla, topic, "--limit", "1700") == [one["ticket"] for one in found[:1700]]
    some = [one["ticket"] for one in found[:1200]]
    done = ottla("delay", "cancel", topic, *some, "--json")
    assert done.returncode == 0
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["ticket"] for one in outcomes] == some
    assert {one["outcome"] for one in outcomes} == {"cancelled"}
    assert tickets(ottla, topic, "--limit", "5000") == [one["ticket"] for one in found[1200:]]


def test_each_ticket_says_what_became_of_it(ottla: Ottla, topic: str) -> None:
    delay(ottla, topic, "soon", 1, 1, "a")
    wait_until(lambda: tickets(ottla, topic) == [], "it is delivered, at offset 1")
    for _ in range(2):
        delay(ottla, topic, "later", HOUR_MS, 1, "a")
    done = ottla("delay", "cancel", topic, "1:2", "1:0", "2:7", "1:2", "1:1")
    assert done.returncode == 1
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()[1:]] == [
        ["1:2", "cancelled"],
        ["1:0", "already delivered"],
        ["2:7", "unknown"],
        ["1:1", "unknown"],
    ]
    assert tickets(ottla, topic) == ["1:3"]
    again = ottla("delay", "cancel", topic, "1:3", "1:2", "--json")
    assert again.returncode == 1
    assert [json.loads(line) for line in again.stdout.splitlines()] == [
        {"topic": topic, "ticket": "1:3", "outcome": "cancelled"},
        {"topic": topic, "ticket": "1:2", "outcome": "already cancelled"},
    ]
    assert tickets(ottla, topic) == []


def test_schedules_come_and_go(ottla: Ottla, broker: RunningBroker, topic: str) -> None:
    done = ottla(
        *("schedule", "add", topic, "--cron", "0 6 * * 1-5", "--timezone", "Europe/Prague"),
        *("--key", "report", "--header", "kind=daily", "--partition", "1", "today's numbers"),
    )
    assert (done.returncode, done.stdout) == (0, "1:0\n")
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["next"] * 3
    added = ottla(
        *("schedule", "add", topic, "--cron", "0 0 1 1 *", "--partition", "1", "--json"),
        stdin="two\nlines\n",
    )
    found = json.loads(added.stdout)
    assert found["id"] == "1:1"
    days = [(later - first) / DAY_MS for first, later in pairwise(found["next_ms"])]
    assert len(days) == 2
    assert set(days) <= {365, 366}
    lines = ottla("schedule", "list", topic, "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert {one["id"]: (one["cron"], one["timezone"], one["key"]) for one in rows} == {
        "1:0": ("0 6 * * 1-5", "Europe/Prague", "report"),
        "1:1": ("0 0 1 1 *", "UTC", None),
    }
    assert [one["next_ms"] for one in rows] == sorted(one["next_ms"] for one in rows)
    assert "0 6 * * 1-5" in ottla("schedule", "list", topic).stdout
    delay(ottla, topic, "once", HOUR_MS, 1, "a")
    refused = ottla("schedule", "remove", topic, "1:1", "1:2")
    assert refused.returncode == 2
    assert "1:2 is not a schedule, it comes once" in refused.stderr
    assert ottla("schedule", "remove", topic, "1:1").returncode == 0
    again = ottla("schedule", "remove", topic, "1:1", "--json")
    assert (again.returncode, json.loads(again.stdout)["outcome"]) == (1, "already cancelled")
    assert "1:1" not in ottla("schedule", "list", topic).stdout
    assert ottla("config", "set", "topic", topic, "delay.enable=false").returncode == 0
    refused = ottla("schedule", "add", topic, "--cron", "* * * * *", "v")
    assert (refused.returncode, "delay.enable is false" in refused.stderr) == (1, True)
    assert ottla("schedule", "remove", topic, "1:0").returncode == 0, "also when it is off"


def test_nothing_is_written_to_a_topic_whose_records_cannot_wait(
    ottla: Ottla, broker: RunningBroker
) -> None:
    ottla("topic", "create", "delay-plain")
    for command in (
        ("delay", "list", "delay-plain"),
        ("delay", "cancel", "delay-plain", "0:1"),
        ("schedule", "add", "delay-plain", "--cron", "* * * * *", "v"),
        ("schedule", "list", "delay-plain"),
        ("schedule", "remove", "delay-plain", "0:1"),
    ):
        done = ottla(*command)
        assert done.returncode == 1
        assert done.stderr == (
            "ottla: topic delay-plain: its records cannot wait: `ottla config set topic delay-plain"
            " delay.enable=true` enables it\n"
        )
    assert ottla("consume", "delay-plain", "--from", "beginning", "--until", "end").stdout == ""


def test_a_cancel_never_ends_in_the_log_of_another_partition(ottla: Ottla, topic: str) -> None:
    """Batches for a sealed partition go to an active one, where a ticket is another record's."""
    for partition in range(3):
        delay(ottla, topic, "v", HOUR_MS, partition, f"{partition}")
    assert ottla("topic", "alter", topic, "--partitions", "1").returncode == 0
    assert sorted(tickets(ottla, topic)) == ["0:0", "1:0", "2:0"]
    for codec in ("none", "zstd"):
        sent = ottla(
            *("produce", topic, "--partition", "2", "--compression", codec),
            *("--header", "ottla.cancel=0"),
            stdin="v\n",
        )
        assert (sent.returncode, f"{topic}-2 is sealed" in sent.stderr) == (1, True)
    done = ottla("delay", "cancel", topic, "1:0")
    assert done.returncode == 1
    assert f"{topic}-1 is sealed: what waits there can be cancelled once" in done.stderr
    assert sorted(tickets(ottla, topic)) == ["0:0", "1:0", "2:0"]
    assert ottla("topic", "alter", topic, "--partitions", "3").returncode == 0
    assert ottla("delay", "cancel", topic, "1:0").returncode == 0
    assert sorted(tickets(ottla, topic)) == ["0:0", "2:0"]


def test_delays_and_schedules_outlive_a_broker(tmp_path: Path) -> None:
    """From end to end, with processes of their own: sent, listed, killed, cancelled, delivered."""
    running = start_broker(tmp_path / "data")

    def ottla(*words: str, stdin: str = "") -> Any:
        return run_ottla(*words, broker=running.address, stdin=stdin)

    made = ottla("topic", "create", "reminders", "--config", "delay.enable=true")
    assert made.returncode == 0
    for value, delay_ms in (("far", HOUR_MS), ("unwanted", HOUR_MS)):
        delay(ottla, "reminders", value, delay_ms, 0, value)
    assert ottla("schedule", "add", "reminders", "--cron", "0 0 1 1 *", "v").stdout == "0:2\n"
    assert ottla("delay", "cancel", "reminders", "0:1").returncode == 0
    delay(ottla, "reminders", "wanted", 3000, 0, "wanted")
    running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()
    running = start_broker(tmp_path / "data")
    read = ottla("consume", "reminders", "--from", "beginning", "--count", "1", "--follow")
    assert read.stdout == "wanted\n"
    left = listed(ottla, "reminders")
    assert {one["ticket"] for one in left["records"]} == {"0:0", "0:2"}
    assert left["partitions"] == [{"partition": 0, "waiting": 2, "schedules": 1, "undecided": 0}]
    again = ottla("delay", "cancel", "reminders", "0:1")
    assert (again.returncode, "already cancelled" in again.stdout) == (1, True)
    assert ottla("schedule", "remove", "reminders", "0:2").returncode == 0
    assert tickets(ottla, "reminders") == ["0:0"]
    assert running.stop() == 0


@pytest.mark.slow
def test_three_brokers_are_asked_through_a_change_of_leaders(tmp_path: Path) -> None:
    with supervised(tmp_path / "data") as brokers:

        def ottla(*words: str, stdin: str = "") -> Any:
            return call_ottla(*words, broker=brokers.address, stdin=stdin)

        wait_until(lambda: brokers.live() == 3, "three brokers are alive")
        made = ottla(
            *("topic", "create", "q", "--partitions", "6", "--replicas", "3"),
            *("--config", "delay.enable=true"),
        )
        assert made.returncode == 0, made
        for number in range(12):
            delay(ottla, "q", f"{number}", HOUR_MS + number * 1000, number % 6, f"k{number}")
        added = ottla("schedule", "add", "q", "--cron", "0 0 1 1 *", "--partition", "3", "v")
        assert added.stdout == "3:2\n"
        wanted = [f"{number % 6}:{number // 6}" for number in range(12)] + ["3:2"]
        assert tickets(ottla, "q") == wanted
        before = partitions_of(ottla, "q")
        assert len({one["leader"] for one in before}) == 3, "every broker is asked"
        os.kill(brokers.children()[before[0]["leader"]], signal.SIGKILL)
        assert tickets(ottla, "q") == wanted, "the next leader is asked"
        assert partitions_of(ottla, "q")[0]["leader_epoch"] > before[0]["leader_epoch"]
        assert ottla("delay", "cancel", "q", "0:0", "3:1").returncode == 0
        assert ottla("schedule", "remove", "q", "3:2").returncode == 0
        left = [ticket for ticket in wanted if ticket not in {"0:0", "3:1", "3:2"}]
        assert tickets(ottla, "q") == left
        assert tickets(ottla, "q", "--key", "k6") == ["0:1"]


def partitions_of(ottla: Ottla, topic: str) -> list[Any]:
    """The partitions of a topic as `topic describe` shows them."""
    lines = ottla("topic", "describe", topic, "--json").stdout.splitlines()
    found: list[Any] = json.loads(lines[0])["partitions"]
    return found
