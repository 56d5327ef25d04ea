"""`ottla consume --share`: a member of a share group that accepts what it has printed."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from cli.processes import COMMAND, PATIENCE_S, Ottla, RunningBroker, run_ottla, wait_until

NUMBERS = [str(number) for number in range(10)]


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    """A topic with ten records in two partitions, and a group of the same name that reads all."""
    name: str = request.node.name.removeprefix("test_")[:60]
    ottla("topic", "create", name, "--partitions", "2")
    ottla("produce", name, stdin="\n".join(NUMBERS))
    ottla("config", "set", "group", name, "share.auto.offset.reset=earliest")
    return name


def lag(ottla: Ottla, group: str) -> int | None:
    """The lag of a group; None while it is not known of every partition, before it is read."""
    found: dict[str, Any] = json.loads(ottla("group", "describe", group, "--json").stdout)
    lags = [one["lag"] for one in found["partitions"]]
    return None if None in lags else sum(lags)


def test_what_is_printed_is_accepted(ottla: Ottla, topic: str) -> None:
    done = ottla("consume", topic, "--share", topic)
    assert sorted(done.stdout.split()) == NUMBERS
    assert f"10 records accepted, share group {topic} left" in done.stderr
    assert lag(ottla, topic) == 0
    again = ottla("consume", topic, "--share", topic)
    assert again.stdout == ""


def test_a_count_takes_so_many_and_leaves_the_others(ottla: Ottla, topic: str) -> None:
    done = ottla("consume", topic, "--share", topic, "--count", "3", "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 3
    assert {one["topic"] for one in records} == {topic}
    assert lag(ottla, topic) == 7
    rest = ottla("consume", topic, "--share", topic).stdout.split()
    assert sorted([*rest, *(one["value"] for one in records)]) == NUMBERS


def test_followers_share_the_records_and_leave_on_a_signal(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    def follow() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, "--broker", broker.address, "consume", topic, "--share", topic, "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    members = [follow(), follow()]
    try:
        wait_until(_has(broker, topic, 2), "both have joined")
        ottla("produce", topic, stdin="\n".join(NUMBERS))
        wait_until(lambda: lag(ottla, topic) == 0, "all records are accepted")
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        said = [member.communicate(timeout=PATIENCE_S) for member in members]
    assert sorted("".join(out for out, _ in said).split()) == sorted(NUMBERS * 2)
    assert [member.returncode for member in members] == [0, 0]
    assert all("share group" in note for _, note in said)
    wait_until(_has(broker, topic, 0), "both have left")


def _has(broker: RunningBroker, group: str, count: int) -> Callable[[], bool]:
    def has() -> bool:
        done = run_ottla("group", "describe", group, "--json", broker=broker.address)
        return done.returncode == 0 and len(json.loads(done.stdout)["members"]) == count

    return has


def test_a_reader_that_goes_away_gives_back_what_it_did_not_take(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    """As `head` does: what was not written is available again, and is not counted as delivered."""
    member = subprocess.Popen(
        [*COMMAND, "--broker", broker.address, "consume", topic, "--share", topic, "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert member.stdout is not None
    member.stdout.close()
    member.wait(PATIENCE_S)
    done = ottla("consume", topic, "--share", topic)
    assert set(done.stdout.split()) <= set(NUMBERS)
    assert lag(ottla, topic) == 0
