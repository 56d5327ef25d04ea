"""Exactly once, while clients and the broker are killed at any moment.

Processes with librdkafka and with aiokafka read, transform and write in transactions, of which 15
percent abort. They are killed with SIGKILL, replaced while they still run, and the broker is
killed under them. In the end every record that was read must have been written exactly once for
readers of committed records, every transaction must be whole or not there at all, none that was
aborted may be seen, and none may be seen before it was committed.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from confluent_kafka import (
    Consumer,
    Producer,
    TopicPartition,
)

from compat.raw import RawConnection, connected
from compat.wire import list_offset
from crash.load import SILENT, Partition
from crash.processes import BrokerProcess, broker_process, run_ottla
from crash.topics import admin_of, create_topics
from crash.transformer import OUTPUT_PARTITIONS, Settings
from ottla.errors import ErrorCode
from ottla.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

_TRANSACTIONS: Final = int(os.environ.get("OTTLA_CRASH_TRANSACTIONS", "200"))
_PAUSE_MAX_S: Final = float(os.environ.get("OTTLA_CRASH_PAUSE_S", "2"))  # between two kills
_RECORDS_MAX: Final = 9  # of a transaction, so that five are in one on average
_TIMEOUT_S: Final = float(os.environ.get("OTTLA_CRASH_TIMEOUT_S", "6"))  # of a transaction
_SLACK_S: Final = 5.0  # for a busy machine, on top of it
_PATIENCE_S: Final = 60.0
_SILENCE_S: Final = 120.0  # so long nothing may come out before the test gives up
_WORKERS: Final = int(os.environ.get("OTTLA_CRASH_WORKERS", "2"))  # of each client library
_INPUT_PARTITIONS: Final = 2 * _WORKERS
_PROGRAM: Final = Path(__file__).with_name("transformer.py")
_SETTINGS: Final = (
    "--set=group.initial.rebalance.delay.ms=0",
    "--set=group.min.session.timeout.ms=1000",
    "--set=offsets.topic.num.partitions=4",
    "--set=transaction.state.log.num.partitions=4",
    "--set=log.flush.offset.checkpoint.interval.ms=100",
)


class Lane(NamedTuple):
    """What one client library does: its source, its target, and who works there."""

    client: str
    workers: tuple[tuple[int, ...], ...]  # the partitions of each

    @property
    def source(self) -> str:
        return f"in-{self.client}"

    @property
    def target(self) -> str:
        return f"out-{self.client}"


LANES: Final = (
    Lane("confluent", tuple(() for _ in range(_WORKERS))),
    Lane("aiokafka", tuple((2 * number, 2 * number + 1) for number in range(_WORKERS))),
)
TARGETS: Final[list[Partition]] = [
    (lane.target, index) for lane in LANES for index in range(OUTPUT_PARTITIONS)
]
OFFSETS: Final = [("__consumer_offsets", index) for index in range(4)]
WATCHED: Final[list[Partition]] = [*TARGETS, *OFFSETS]
LATEST: Final = -1
UNCOMMITTED, COMMITTED = 0, 1


class Written(NamedTuple):
    """A record of a target, as its value says."""

    read_from: str
    transaction: str
    size: int


def written(value: bytes | str | None) -> Written:
    assert isinstance(value, bytes)
    read_from, transaction, size = value.decode().split()
    return Written(read_from, transaction, int(size))


class Journals:
    """What the workers noted so far; read on while they write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: Counter[Path] = Counter()
        self.words: dict[str, list[str]] = {}

    def read(self) -> None:
        for path in sorted(self._folder.glob("*.journal")):
            with path.open("rb") as file:
                file.seek(self._positions[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._positions[path] += len(line)
                    word, transaction = line.decode().split()
                    self.words.setdefault(transaction, []).append(word)

    def has_word(self, transaction: str, word: str) -> bool:
        return word in self.words.get(transaction, ())


class Slot:
    """A worker that is always there: whoever kills it, the next incarnation takes over."""

    def __init__(self, lane: Lane, number: int, address: str, folder: Path, seed: int) -> None:
        self._lane = lane
        self._number = number
        self._address = address
        self._folder = folder
        self._seed = seed
        self._incarnation = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._incarnation += 1
        name = f"{self._lane.client}-{self._number}"
        settings = Settings(
            client=self._lane.client,
            address=self._address,
            name=name,
            incarnation=self._incarnation,
            group=f"group-{self._lane.client}",
            source=self._lane.source,
            partitions=list(self._lane.workers[self._number]),
            target=self._lane.target,
            journal=str(self._folder / f"{name}.journal"),
            timeout_ms=int(_TIMEOUT_S * 1000),
            records_max=_RECORDS_MAX,
            abort_share=0.15,
            seed=self._seed,
        )
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, str(_PROGRAM), json.dumps(asdict(settings))]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill(self) -> None:
        """SIGKILL for every incarnation that is left."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(_PATIENCE_S)
        self._processes.clear()

    def replace(self) -> None:
        """Start the next while the last one still works: it becomes a zombie."""
        self.start()

    def tend(self) -> int:
        """Start again if it gave up; how many are running."""
        self._processes = [one for one in self._processes if one.poll() is None]
        if not self._processes:
            self.start()
        while len(self._processes) > 2:  # one zombie at a time is enough
            oldest = self._processes.pop(0)
            oldest.kill()
            oldest.wait(_PATIENCE_S)
        return len(self._processes)


class Watch(threading.Thread):
    """Watches the marks of every partition: how long does one hold back its readers?"""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._is_over = threading.Event()
        self._since_s: dict[Partition, tuple[int, float]] = {}
        self.broker_back_s = time.monotonic()
        self.stuck_max_s = 0.0

    def run(self) -> None:
        while not self._is_over.wait(0.1):
            try:
                stable = latest(self._address, COMMITTED)
                ends = latest(self._address, UNCOMMITTED)
            except (OSError, AssertionError):
                continue  # no broker at the moment
            now_s = time.monotonic()
            for partition, offset in stable.items():
                self._note(partition, offset, ends[partition], now_s)

    def stop(self) -> None:
        self._is_over.set()
        self.join(_PATIENCE_S)

    def _note(self, partition: Partition, stable: int, end: int, now_s: float) -> None:
        known, since_s = self._since_s.get(partition, (-1, now_s))
        if stable == end or stable != known:
            self._since_s[partition] = (stable, now_s)
        else:
            # A broker that is away cannot abort anything.
            stuck_s = now_s - max(since_s, self.broker_back_s)
            self.stuck_max_s = max(self.stuck_max_s, stuck_s)


class Reader(threading.Thread):
    """Reads what is committed while it comes; whatever it sees must have been committed by then."""

    def __init__(self, address: str, journals: Path) -> None:
        super().__init__(daemon=True)
        self._consumer = _consumer(address)
        self._journals = Journals(journals)
        self._is_over = threading.Event()
        self.early: list[Written] = []
        self.seen_count = 0

    def run(self) -> None:
        self._consumer.assign([TopicPartition(*tp, 0) for tp in TARGETS])
        while not self._is_over.is_set():
            for message in self._consumer.consume(1000, timeout=0.1):
                if message.error() is not None:
                    continue  # no broker at the moment
                self.seen_count += 1
                one = written(message.value())
                if not self._journals.has_word(one.transaction, "commit"):
                    self._journals.read()
                if not self._journals.has_word(one.transaction, "commit"):
                    self.early.append(one)
        self._consumer.close()

    def stop(self) -> None:
        self._is_over.set()
        self.join(_PATIENCE_S)


def _consumer(address: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "logger": SILENT,
            **more,
        }
    )


@contextmanager
def working(address: str, folder: Path, seed: int) -> Iterator[list[Slot]]:
    """All workers, which are gone when the block ends."""
    slots = [
        Slot(lane, number, address, folder, seed)
        for lane in LANES
        for number in range(len(lane.workers))
    ]
    try:
        for slot in slots:
            slot.start()
        yield slots
    finally:
        for slot in slots:
            slot.kill()


@pytest.mark.slow
@pytest.mark.timeout(300 + _TRANSACTIONS)
def test_kills_of_clients_and_broker_lose_double_tear_and_leak_nothing(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    records = _TRANSACTIONS * (_RECORDS_MAX + 1) // 2
    folder = tmp_path / "journals"
    folder.mkdir()
    kills: Counter[str] = Counter()
    with broker_process(tmp_path / "data", *_SETTINGS) as broker:
        admin = admin_of(broker.address)
        sources = {lane.source: {"segment.bytes": "65536"} for lane in LANES}
        create_topics(admin, sources, partitions=_INPUT_PARTITIONS)
        targets = {lane.target: {"segment.bytes": "65536"} for lane in LANES}
        create_topics(admin, targets, partitions=OUTPUT_PARTITIONS)
        read_from = {lane.source: fill(broker.address, lane, records // 2) for lane in LANES}
        began_s = time.monotonic()
        with working(broker.address, folder, rng.getrandbits(32)) as slots:
            watch = Watch(broker.address)
            reader = Reader(broker.address, folder)
            wait_progress(broker.address)
            watch.start()
            reader.start()
            torment(broker, slots, watch, rng, kills, records)
        took_s = time.monotonic() - began_s
        wait_decided(broker.address)
        watch.stop()
        reader.stop()
        journals = Journals(folder)
        journals.read()
        seen = read_committed(broker.address)
        check(seen, journals, read_from)
        assert reader.early == []
        assert watch.stuck_max_s <= _TIMEOUT_S + _SLACK_S
        assert broker.stop() == 0
    assert "Traceback" not in broker.said()
    assert run_ottla("log", "verify", str(tmp_path / "data")).returncode == 0
    aborted = len(journals.words) - len({one.transaction for one in seen})
    report(
        f"{len({one.transaction for one in seen})} transactions committed and {aborted} aborted"
        f" or interrupted in {took_s:.0f} s, {len(seen)} records, none lost, doubled, torn or"
        f" early; {kills['broker']} kills of the broker, {kills['client']} of clients,"
        f" {kills['zombie']} zombies; readers were held back for {watch.stuck_max_s:.1f} s at most"
    )


def fill(address: str, lane: Lane, count: int) -> set[str]:
    """Write what is to be read; the name of each record."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for number in range(count):
        producer.produce(lane.source, b"%d" % number, partition=number % _INPUT_PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(_PATIENCE_S)
    assert producer.flush(_PATIENCE_S) == 0
    return {f"{lane.source}/{n % _INPUT_PARTITIONS}/{n // _INPUT_PARTITIONS}" for n in range(count)}


def torment(
    broker: BrokerProcess,
    slots: list[Slot],
    watch: Watch,
    rng: Random,
    kills: Counter[str],
    records: int,
) -> None:
    """Kill somebody again and again, until everything has been read."""
    done, moved_s = 0, time.monotonic()
    while done < records:
        time.sleep(rng.uniform(0.2, _PAUSE_MAX_S))  # chance decides about the moment
        victim = rng.choices(["broker", "client", "zombie", "nobody"], [3, 3, 1, 2])[0]
        kills[victim] += 1
        if victim == "broker":
            broker.kill()
            broker.start()
            watch.broker_back_s = time.monotonic()
        elif victim == "client":
            slot = rng.choice(slots)
            slot.kill()
            time.sleep(rng.uniform(0, 0.3))
            slot.start()
        elif victim == "zombie":
            rng.choice(slots).replace()
        for slot in slots:
            slot.tend()
        last, done = done, max(done, progress(broker.address))
        if done > last:
            moved_s = time.monotonic()
        assert time.monotonic() - moved_s < _SILENCE_S, f"{done} of {records}, and no further"


def progress(address: str) -> int:
    """How many records the groups have read, by their committed offsets."""
    with connected(address) as raw:
        return sum(committed(raw, lane) for lane in LANES)


def committed(raw: RawConnection, lane: Lane) -> int:
    wanted = OffsetFetchRequestTopics(
        name=lane.source, partition_indexes=list(range(_INPUT_PARTITIONS))
    )
    group = OffsetFetchRequestGroup(group_id=f"group-{lane.client}", topics=[wanted])
    (found,) = raw.ask(OffsetFetchRequest(groups=[group]), 9).groups
    if found.error_code != ErrorCode.NONE:
        return 0  # it is being loaded
    return sum(max(one.committed_offset, 0) for one in found.topics[0].partitions)


def wait_progress(address: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while progress(address) == 0:
        assert time.monotonic() < until_s, "nothing is read"
        time.sleep(0.1)


def wait_decided(address: str) -> None:
    """All workers are dead: what they left open is aborted when its time is over."""
    until_s = time.monotonic() + _TIMEOUT_S + _PATIENCE_S
    while True:
        stable = latest(address, COMMITTED)
        if stable == latest(address, UNCOMMITTED):
            return
        assert time.monotonic() < until_s, f"still open: {stable}"
        time.sleep(0.1)


def latest(address: str, isolation_level: int) -> dict[Partition, int]:
    """Where readers of this level must stop in each partition."""
    with connected(address) as raw:
        return {
            (topic, index): list_offset(
                raw, topic, LATEST, partition=index, isolation_level=isolation_level
            ).offset
            for topic, index in WATCHED
        }


def read_committed(address: str) -> list[Written]:
    """Everything that a reader of committed records finds."""
    consumer = _consumer(address, **{"enable.partition.eof": True})
    consumer.assign([TopicPartition(*tp, 0) for tp in TARGETS])
    found: list[Written] = []
    ends: set[tuple[str | None, int | None]] = set()
    until_s = time.monotonic() + _PATIENCE_S
    while len(ends) < len(TARGETS):
        assert time.monotonic() < until_s, "the ends do not come"
        for message in consumer.consume(10_000, timeout=0.1):
            if message.error() is None:
                found.append(written(message.value()))
            else:
                ends.add((message.topic(), message.partition()))
    consumer.close()
    return found


def check(seen: Iterable[Written], journals: Journals, read_from: dict[str, set[str]]) -> None:
    """Nothing lost, doubled, torn or aborted."""
    sizes: Counter[tuple[str, int]] = Counter()
    copies: Counter[str] = Counter()
    for one in seen:
        copies[one.read_from] += 1
        sizes[one.transaction, one.size] += 1
    wanted = set[str]().union(*read_from.values())
    lost = wanted - copies.keys()
    assert not lost, f"{len(lost)} records are lost: {sorted(lost)[:3]}"
    doubled = [name for name, count in copies.items() if count > 1]
    assert not doubled, f"{len(doubled)} records are doubled: {doubled[:3]}"
    assert copies.keys() == wanted, "what nobody wrote"
    torn = [transaction for (transaction, size), count in sizes.items() if count != size]
    assert not torn, f"{len(torn)} transactions are torn: {torn[:3]}"
    committed = {transaction for transaction, _ in sizes}
    for transaction, words in journals.words.items():
        if "committed" in words:
            assert transaction in committed, f"{transaction} was committed and is not there"
        if "aborted" in words:
            assert transaction not in committed, f"{transaction} was aborted and is there"
    for transaction in committed:
        assert journals.has_word(transaction, "commit"), f"{transaction} asked for no commit"


GOOD: Final = [Written("in/0/0", "w.1.1", 2), Written("in/0/1", "w.1.1", 2)]
WORDS: Final = {"w.1.1": ["commit", "committed"], "w.1.2": ["aborted"]}


@pytest.mark.parametrize(
    ("seen", "words", "finding"),
    [
        (GOOD[:1], WORDS, "lost"),
        ([*GOOD, Written("in/0/0", "w.1.3", 1)], {**WORDS, "w.1.3": ["commit"]}, "doubled"),
        ([GOOD[0], Written("in/0/1", "w.1.3", 2)], {**WORDS, "w.1.3": ["commit"]}, "torn"),
        ([*GOOD, Written("in/0/2", "w.1.1", 2)], WORDS, "nobody wrote"),
        (GOOD, {"w.1.1": ["commit", "aborted"]}, "was aborted and is there"),
        (GOOD, {**WORDS, "w.1.4": ["commit", "committed"]}, "was committed and is not there"),
        (GOOD, {"w.1.1": []}, "asked for no commit"),
    ],
)
def test_the_judge_finds_what_is_wrong(
    seen: list[Written], words: dict[str, list[str]], finding: str, tmp_path: Path
) -> None:
    journals = Journals(tmp_path)
    journals.words = words
    with pytest.raises(AssertionError, match=finding):
        check(seen, journals, {"in": {"in/0/0", "in/0/1"}})


def test_the_judge_has_nothing_against_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "w.journal").write_text("aborted w.1.2\ncommit w.1.1\ncommitted w.1.1\ncomm")
    journals = Journals(tmp_path)
    journals.read()
    assert journals.words == WORDS
    check(GOOD, journals, {"in": {"in/0/0", "in/0/1"}})
