"""A share group on three brokers, whose members, leaders and coordinators are killed.

None is lost, none is delivered after its acceptance was answered, and every record is accepted or
has one dead letter.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import ottla
from cli.processes import wait_until
from crash.load import SILENT, STEADY
from crash.processes import run_ottla
from crash.test_cluster import Cluster, cluster
from crash.topics import PATIENCE_S, admin_of

_RECORDS: Final = int(os.environ.get("OTTLA_SHARE_RECORDS", "600"))
_MEMBER_KILLS: Final = int(os.environ.get("OTTLA_SHARE_MEMBER_KILLS", "1"))
_BROKER_KILLS: Final = int(os.environ.get("OTTLA_SHARE_BROKER_KILLS", "1"))
_MEMBERS: Final = 3
_GROUP, _TOPIC, _DEAD = "workers", "jobs", "dlq.jobs"
_REJECTED: Final = 7
_PROGRAM: Final = Path(__file__).with_name("share_member.py")
_SETTINGS: Final = (
    "--set=share.coordinator.state.topic.replication.factor=3",
    "--set=share.coordinator.state.topic.num.partitions=6",
    "--set=offsets.topic.num.partitions=6",
)
_HELD: Final = 12  # messages, of three partitions
_FINISH_S: Final = 120 + _RECORDS / 100


class Line(NamedTuple):
    """A line of a member: a record that it got, or whose acknowledgement was answered."""

    kind: str
    value: int
    at_s: float


class Members:
    """Processes of members; each writes into a file of its own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._positions = Counter[Path]()  # up to which files were read
        self._lines: list[Line] = []
        self._got: set[int] = set()

    def start(self) -> None:
        self._count += 1
        with (self._directory / f"member{self._count}.txt").open("wb") as out:
            self._running.append(
                subprocess.Popen(
                    [sys.executable, str(_PROGRAM), self._bootstrap, _GROUP, _TOPIC],
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                )
            )

    def kill(self, rng: Random) -> None:
        """Kill one of them; another takes over."""
        process = self._running.pop(rng.randrange(len(self._running)))
        process.kill()
        process.wait(PATIENCE_S)
        self.start()

    def lines(self) -> list[Line]:
        """Everything that members have written, by time."""
        self._read()
        return sorted(self._lines, key=lambda line: line.at_s)

    def got_count(self) -> int:
        """How many different records they have got."""
        self._read()
        return len(self._got)

    def _read(self) -> None:
        """Read what is new; the last line of a file may not be whole yet."""
        for path in sorted(self._directory.glob("member*.txt")):
            with path.open() as file:
                file.seek(self._positions[path])
                text = file.read()
            whole, newline, _ = text.rpartition("\n")
            self._positions[path] += len(whole) + len(newline)
            for line in whole.splitlines():
                kind, value, at_s = line.split()
                self._lines.append(Line(kind, int(value), float(at_s)))
                self._got.add(int(value))

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(PATIENCE_S)


@contextmanager
def members_of(bootstrap: str, directory: Path) -> Iterator[Members]:
    members = Members(bootstrap, directory)
    try:
        for _ in range(_MEMBERS):
            members.start()
        yield members
    finally:
        members.end()


class Sending:
    """A producer of numbers, and those that are certainly there."""

    def __init__(self, bootstrap: str) -> None:
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "delivery.timeout.ms": 300_000,
            "linger.ms": 5,
            "batch.num.messages": 20,
            **STEADY,
        }
        self._producer = Producer(settings, logger=SILENT)
        self._next = 0
        self.sent: set[int] = set()

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self._next
            self._next += 1
            self._producer.produce(
                _TOPIC,
                str(number).encode(),
                partition=number % 3,
                on_delivery=partial(self._note, number),
            )
            self._producer.poll(0)

    def _note(self, number: int, error: KafkaError | None, _: object) -> None:
        assert error is None, error
        self.sent.add(number)

    def flush(self) -> None:
        assert self._producer.flush(300) == 0


def begin(running: Cluster) -> AdminClient:
    """The topics, and a group that reads from the beginning and has a topic for dead letters."""
    admin = admin_of(running.bootstrap)
    dead = NewTopic(_DEAD, 3, 3, config={"errors.deadletterqueue.group.enable": "true"})
    for future in admin.create_topics([NewTopic(_TOPIC, 3, 3), dead]).values():
        future.result(PATIENCE_S)
    done = run_ottla(
        *("config", "set", "group", _GROUP, "share.auto.offset.reset=earliest"),
        *(f"errors.deadletterqueue.topic.name={_DEAD}", "--broker", running.bootstrap),
    )
    assert done.returncode == 0, done.stderr
    return admin


def wait_got(group: Members, count: int) -> None:
    """Return when members have got so many different records; some come all the time."""

    def has_more() -> bool:
        return group.got_count() > known

    while (known := group.got_count()) < count:
        wait_until(has_more, f"more than {known} got")


def wait_finished(running: Cluster) -> None:
    """Return when every record is finished; there are fewer all the time."""

    def has_fewer() -> bool:
        return lags(running) != known

    while (known := lags(running)) != [0, 0, 0]:
        wait_until(has_fewer, f"other lags than {known}")


def lags(running: Cluster) -> list[int | None]:
    done = run_ottla("group", "describe", _GROUP, "--json", "--broker", running.bootstrap)
    if done.returncode != 0:
        return [None]
    return [one["lag"] for one in json.loads(done.stdout)["partitions"]]


def dead_values(running: Cluster) -> list[int]:
    done = run_ottla("consume", _DEAD, "--json", "--broker", running.bootstrap)
    assert done.returncode == 0, done.stderr
    return sorted(int(json.loads(line)["value"]) for line in done.stdout.splitlines())


def kill_broker(running: Cluster, rng: Random) -> None:
    """Kill a broker: a third of all leaders and coordinators; it comes back."""
    broker = running.brokers[rng.randrange(len(running.brokers))]
    broker.kill()
    broker.start()


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * _FINISH_S)
def test_members_and_brokers_are_killed(tmp_path: Path) -> None:
    rng = Random(int(os.environ.get("OTTLA_SEED", "1")))
    kills = ["member"] * _MEMBER_KILLS + ["broker"] * _BROKER_KILLS
    rng.shuffle(kills)
    with cluster(tmp_path, *_SETTINGS) as running, members_of(running.bootstrap, tmp_path) as group:
        begin(running)
        sending = Sending(running.bootstrap)
        share = _RECORDS // (len(kills) + 1)
        for number, kill in enumerate(kills):
            sending.send(share)
            wanted = number * share + share // 3
            wait_got(group, wanted)
            if kill == "member":
                group.kill(rng)
            else:
                kill_broker(running, rng)
        sending.send(_RECORDS - share * len(kills))
        sending.flush()
        wait_finished(running)
        judge(group.lines(), sending.sent, dead_values(running))


@pytest.mark.slow
def test_a_queue_holds_its_messages_through_the_deaths_of_their_leaders(tmp_path: Path) -> None:
    """Leases are durable: whichever broker leads, messages belong to the member that took them."""
    with cluster(tmp_path, *_SETTINGS) as running:
        begin(running)
        queues = [ottla.Queue(_TOPIC, servers=running.bootstrap, group=_GROUP) for _ in range(2)]
        with queues[0] as queue, queues[1] as other:
            for number in range(_HELD):
                queue.put(str(number), key=str(number))
            held: list[ottla.Message] = []
            while len(held) < _HELD:
                held += queue.get(_HELD - len(held), wait=PATIENCE_S)
            for broker in running.brokers:
                broker.kill()
                broker.start()
                assert other.get(_HELD, wait=1) == [], "its member holds them"
            for message in held:
                assert message.deliveries == 1
                message.ack()
            wait_finished(running)


def judge(lines: list[Line], sent: set[int], dead: list[int]) -> None:
    """Compare what members wrote with what was sent, and with the dead letters."""
    got = Counter(line.value for line in lines if line.kind == "got")
    assert len(sent) == _RECORDS
    assert got.keys() == sent, f"lost: {sorted(sent - got.keys())[:20]}"
    answered: dict[int, float] = {}
    for line in lines:
        if line.kind == "got":
            assert line.value not in answered, (
                f"{line} came {line.at_s - answered[line.value]:.3f} s after its acknowledgement"
            )
        else:
            answered.setdefault(line.value, line.at_s)
    assert len(dead) == len(set(dead)), "a dead letter is there twice"
    rejected = {number for number in sent if number % _REJECTED == 0}
    assert rejected <= set(dead), f"no dead letter: {sorted(rejected - set(dead))[:20]}"
    accepted = {line.value for line in lines if line.kind == "accepted"}
    assert not accepted & set(dead), "accepted, and dead"
    again = sum(got.values()) - len(got)
    sys.stdout.write(
        f"records {len(sent)}, deliveries {sum(got.values())} ({again} again),"
        f" dead letters {len(dead)}, most deliveries of one {max(got.values())}\n"
    )
