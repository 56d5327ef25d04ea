"""`ottla consume --group`: a member like any other, and nothing is lost when it ends."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.processes import (
    COMMAND,
    PATIENCE_S,
    Ottla,
    RunningBroker,
    run_ottla,
    start_broker,
    wait_until,
)
from compat.group_member import Member

PARTITIONS = 4


class Reader:
    """`ottla consume --group` in its own process, and what it has said so far."""

    def __init__(self, address: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--broker", address, "consume", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._threads = [
            threading.Thread(target=self._take, args=(stream, kept), daemon=True)
            for stream, kept in (
                (self.process.stdout, self.lines),
                (self.process.stderr, self.notes),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def owned(self) -> str:
        """What it last said that it reads."""
        said = [note for note in self.notes if "reading " in note]
        return said[-1].rpartition("reading ")[2] if said else ""

    def end(self, signum: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status

    @staticmethod
    def _take(stream: Any, kept: list[str]) -> None:
        kept.extend(line.rstrip("\n") for line in stream)


StartReader = Callable[..., Reader]


@pytest.fixture
def read(broker: RunningBroker) -> Iterator[StartReader]:
    started: list[Reader] = []

    def start(*arguments: str, address: str = broker.address) -> Reader:
        started.append(Reader(address, *arguments))
        return started[-1]

    yield start
    for reader in started:
        if reader.process.poll() is None:
            reader.process.kill()
            reader.wait()


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    said: str = request.node.name.removeprefix("test_")
    name = said.replace("[", "-").replace("]", "")[:60]
    ottla("topic", "create", name, "--partitions", str(PARTITIONS))
    return name


def write(ottla: Ottla, topic: str, start: int, end: int) -> list[str]:
    """Numbers, spread over all partitions."""
    values = [str(n) for n in range(start, end)]
    lines = [json.dumps({"value": n, "partition": int(n) % PARTITIONS}) for n in values]
    written = ottla("produce", topic, "--format", "json", stdin="\n".join(lines))
    assert written.returncode == 0, written
    return values


def lag(ottla: Ottla, group: str) -> int:
    found = json.loads(ottla("group", "describe", group, "--json").stdout)
    assert all(part["committed_offset"] is not None for part in found["partitions"])
    return int(found["lag"])


def test_a_group_reads_each_record_once_and_goes_on_where_it_was(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    first = write(ottla, topic, 0, 100)
    done = run_ottla("consume", topic, "--group", topic, broker=broker.address)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == sorted(first)
    assert done.stderr.splitlines() == [
        f"group {topic}, generation 1: reading {topic}:0,1,2,3",
        f"group {topic}: revoked {topic}:0,1,2,3",
        f"100 records read, group {topic} left",
    ]
    assert lag(ottla, topic) == 0
    second = write(ottla, topic, 100, 120)
    assert lag(ottla, topic) == 20
    again = run_ottla("consume", topic, "--group", topic, broker=broker.address)
    assert sorted(again.stdout.split()) == sorted(second)
    members = json.loads(ottla("group", "describe", topic, "--json").stdout)["members"]
    assert members == [], "it has left, nobody has to wait for its session"


def test_enough_is_enough_and_the_rest_is_for_the_next(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    values = write(ottla, topic, 0, 20)
    found: list[str] = []
    for _ in range(3):
        arguments = ["consume", topic, "--group", topic, "--count", "8"]
        found += run_ottla(*arguments, broker=broker.address).stdout.split()
    assert sorted(found) == sorted(values)


def test_from_counts_only_where_nothing_is_committed(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    write(ottla, topic, 0, 20)
    arguments = ["consume", topic, "--group", topic, "--from", "end"]
    assert run_ottla(*arguments, broker=broker.address).stdout == ""
    later = write(ottla, topic, 20, 24)
    found = run_ottla(*arguments, broker=broker.address).stdout.split()
    assert sorted(found) == later, "the first run began at what was the end then"


def test_several_topics_are_read_together(ottla: Ottla, broker: RunningBroker, topic: str) -> None:
    other = f"{topic}-2"
    ottla("topic", "create", other)
    write(ottla, topic, 0, 8)
    ottla("produce", other, stdin="other\n")
    done = run_ottla(
        *("consume", topic, other, "--group", topic, "--format", "%n %v\\n"), broker=broker.address
    )
    assert sorted({line.split()[0] for line in done.stdout.splitlines()}) == sorted([topic, other])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_stop_commits_and_leaves(
    signum: signal.Signals, ottla: Ottla, read: StartReader, topic: str
) -> None:
    reader = read(topic, "--group", topic, "--follow", "--commit-every", "1h")
    wait_until(lambda: reader.owned != "")
    values = write(ottla, topic, 0, 40)
    wait_until(lambda: len(reader.lines) == 40)
    assert lag(ottla, topic) == 40, "an hour has not passed"
    assert reader.end(signum) == 0
    assert sorted(reader.lines) == sorted(values)
    assert reader.notes[-1] == f"40 records read, group {topic} left"
    about = json.loads(ottla("group", "describe", topic, "--json").stdout)
    assert (about["state"], about["lag"]) == ("Empty", 0)


def test_who_is_killed_leaves_what_it_had_not_committed_to_the_next(
    ottla: Ottla, read: StartReader, topic: str, broker: RunningBroker
) -> None:
    reader = read(topic, "--group", topic, "--follow", "--commit-every", "1h")
    wait_until(lambda: reader.owned != "")
    values = write(ottla, topic, 0, 40)
    wait_until(lambda: len(reader.lines) == 40)
    reader.end(signal.SIGKILL)
    # The dead one counts as a member until its session ends, and nothing as read that it only
    # printed.
    refused = ottla("group", "reset-offsets", topic, "--topic", topic, "--to-latest")
    assert refused.returncode == 1
    assert "it is in use (Stable, 1 member)" in refused.stderr
    assert lag(ottla, topic) == len(values)


def test_commits_happen_while_it_reads(ottla: Ottla, read: StartReader, topic: str) -> None:
    reader = read(topic, "--group", topic, "--follow", "--commit-every", "0s")
    wait_until(lambda: reader.owned != "")
    write(ottla, topic, 0, 40)
    wait_until(lambda: lag(ottla, topic) == 0)
    wait_until(lambda: len(reader.lines) == 40)  # they are on their way through the pipe


def test_two_readers_share_and_what_one_gives_back_the_other_takes(
    ottla: Ottla, read: StartReader, topic: str
) -> None:
    arguments = (topic, "--group", topic, "--follow")
    first = read(*arguments)
    wait_until(lambda: first.owned == f"{topic}:0,1,2,3")
    before = write(ottla, topic, 0, 40)
    wait_until(lambda: len(first.lines) == 40)
    second = read(*arguments)
    shares = {f"{topic}:0,1", f"{topic}:2,3"}
    wait_until(lambda: {first.owned, second.owned} == shares)
    assert f"group {topic}: revoked {topic}:0,1,2,3" in first.notes
    between = write(ottla, topic, 40, 80)
    wait_until(lambda: len(first.lines) + len(second.lines) == 80)
    assert second.end(signal.SIGTERM) == 0
    wait_until(lambda: first.owned == f"{topic}:0,1,2,3")
    after = write(ottla, topic, 80, 120)
    wait_until(lambda: len(first.lines) + len(second.lines) == 120)
    assert first.end(signal.SIGTERM) == 0
    assert sorted(first.lines + second.lines) == sorted(before + between + after)
    assert lag(ottla, topic) == 0


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
@pytest.mark.parametrize("is_first", [True, False], ids=["we-lead", "they-lead"])
def test_a_group_is_shared_with_other_clients(
    client: str, is_first: bool, ottla: Ottla, broker: RunningBroker, read: StartReader, topic: str
) -> None:
    started: list[Reader | Member] = []
    for is_ours in (is_first, not is_first):
        if is_ours:
            started.append(read(topic, "--group", topic, "--follow"))
        else:
            started.append(Member(client, broker.address, topic, topic))
        wait_until(lambda: bool(started[0].owned))
    reader, member = started if is_first else reversed(started)
    assert isinstance(reader, Reader)
    assert isinstance(member, Member)
    try:
        halves = {f"{topic}:0,1", f"{topic}:2,3"}
        wait_until(lambda: len(member.owned) == 2 and reader.owned in halves)
        values = write(ottla, topic, 0, 40)
        wait_until(lambda: len(member.records) + len(reader.lines) >= 40)
        assert set(reader.lines) | set(member.values) == set(values)
        assert len(reader.lines) == 20
        assert reader.end(signal.SIGTERM) == 0
        wait_until(lambda: len(member.owned) == PARTITIONS)
    finally:
        member.kill()


def test_a_member_outlives_its_broker(tmp_path: Path, read: StartReader) -> None:
    sets = ("--set", "group.initial.rebalance.delay.ms=0")
    mortal = start_broker(tmp_path / "data", *sets)

    def ottla(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_ottla(*arguments, broker=mortal.address, **more)

    ottla("topic", "create", "t", "--partitions", str(PARTITIONS))
    reader = read("t", "--group", "g", "--follow", "--commit-every", "0s", address=mortal.address)
    wait_until(lambda: reader.owned == "t:0,1,2,3")
    before = write(ottla, "t", 0, 40)
    wait_until(lambda: len(reader.lines) == 40)
    mortal.process.kill()
    mortal.process.wait(PATIENCE_S)
    assert mortal.process.stdout is not None
    mortal.process.stdout.close()
    mortal = start_broker(tmp_path / "data", *sets, "--listen", mortal.address)
    try:
        after = write(ottla, "t", 40, 80)
        wait_until(lambda: set(reader.lines) == {*before, *after})
        assert reader.end(signal.SIGTERM) == 0
        assert lag(ottla, "g") == 0
    finally:
        assert mortal.stop() == 0


def test_records_that_are_gone_are_skipped_with_a_note(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    write(ottla, topic, 0, 4 * PARTITIONS)
    ottla("group", "reset-offsets", topic, "--topic", topic, "--to-earliest")
    delete_records(broker.address, topic, partition=0, before=3)
    done = run_ottla("consume", topic, "--group", topic, broker=broker.address)
    assert f"group {topic}: {topic}-0 has no offset 0, reading from 3" in done.stderr.splitlines()
    assert len(done.stdout.split()) == 4 * PARTITIONS - 3
    assert lag(ottla, topic) == 0


def test_a_reader_that_stops_reading_does_not_cost_the_membership(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    """Output that nobody takes holds up the reading, not the heartbeats; and Ctrl-C still works."""
    ottla("produce", topic, "--partition", "0", stdin=("x" * 1000 + "\n") * 2000)
    stuck = subprocess.Popen(
        [*COMMAND, "consume", topic, "--group", topic, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OTTLA_BROKER": broker.address},
    )
    assert stuck.stdout is not None
    stuck.stdout.read(100_000)

    def heartbeats() -> bool:
        about = json.loads(ottla("group", "describe", topic, "--json").stdout)
        return about["state"] == "Stable" and len(about["members"]) == 1

    wait_until(heartbeats)
    stuck.send_signal(signal.SIGTERM)
    assert stuck.wait(PATIENCE_S) == 0, "nobody reads, and it leaves all the same"
    _, notes = stuck.communicate()
    assert b"left" in notes
    about = json.loads(ottla("group", "describe", topic, "--json").stdout)
    assert about["state"] == "Empty"


def test_a_broken_pipe_leaves_the_group_too(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    ottla("produce", topic, "--partition", "0", stdin="line\n" * 100_000)
    command = f"{' '.join(COMMAND)} consume {topic} --group {topic} --follow | head -n 3"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "OTTLA_BROKER": broker.address},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "line\n" * 3
    assert "Traceback" not in done.stderr
    about = json.loads(ottla("group", "describe", topic, "--json").stdout)
    assert (about["state"], about["members"]) == ("Empty", [])


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["t", "--group", "g", "--partition", "0"], 2, "leave out --partition and --until"),
        (["t", "--group", "g", "--until", "end"], 2, "leave out --partition and --until"),
        (["t", "--group", "g", "--from", "42"], 2, "--from cannot be an offset"),
        (["t", "--group", "g", "--commit-every", "often"], 2, "not a duration: 'often'"),
        (["missing", "--group", "g"], 1, "topic missing: it does not exist"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: list[str], status: int, problem: str, ottla: Ottla
) -> None:
    answer = ottla("consume", *arguments)
    assert answer.returncode == status
    assert answer.stderr.startswith("ottla: ")
    assert problem in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_group_that_shares_in_a_way_we_do_not_speak_is_left_alone(
    ottla: Ottla, broker: RunningBroker, topic: str
) -> None:
    member = Member("confluent", broker.address, topic, topic, strategy="cooperative-sticky")
    try:
        wait_until(lambda: len(member.owned) == PARTITIONS)
        refused = run_ottla("consume", topic, "--group", topic, broker=broker.address)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"ottla: group {topic}: its members use other assignors")
        assert len(member.owned) == PARTITIONS
    finally:
        member.kill()


def delete_records(address: str, topic: str, *, partition: int, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address})
    for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        done.result(PATIENCE_S)
