"""Workers that read, transform and write in transactions, and the judge of what they wrote.

Each worker is a process that notes in a journal what it asks for and what it is told. Whatever was
killed meanwhile: in the end every record that was read was written exactly once for readers of
committed records, every transaction is whole or not there, and none that was aborted is seen.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import (
    Consumer,
    Producer,
    TopicPartition,
)

from crash.load import SILENT, Partition
from crash.transformer import OUTPUT_PARTITIONS, Settings

RECORDS_MAX: Final = 9  # of a transaction, so that five are in one on average
TIMEOUT_S: Final = float(os.environ.get("OTTLA_CRASH_TIMEOUT_S", "6"))  # of a transaction
_PATIENCE_S: Final = 60.0
_PROGRAM: Final = Path(__file__).with_name("transformer.py")


class Lane(NamedTuple):
    """What one client library does: its source, its target, and who works there."""

    client: str
    workers: tuple[tuple[int, ...], ...]  # the partitions of each
    source_partitions: int

    @property
    def source(self) -> str:
        return f"in-{self.client}"

    @property
    def target(self) -> str:
        return f"out-{self.client}"

    @property
    def group(self) -> str:
        return f"group-{self.client}"


def targets_of(lanes: Iterable[Lane]) -> list[Partition]:
    return [(lane.target, index) for lane in lanes for index in range(OUTPUT_PARTITIONS)]


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
            group=self._lane.group,
            source=self._lane.source,
            partitions=list(self._lane.workers[self._number]),
            target=self._lane.target,
            journal=str(self._folder / f"{name}.journal"),
            timeout_ms=int(TIMEOUT_S * 1000),
            records_max=RECORDS_MAX,
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


class Reader(threading.Thread):
    """Reads what is committed while it comes; whatever it sees must have been committed by then."""

    def __init__(self, address: str, journals: Path, targets: list[Partition]) -> None:
        super().__init__(daemon=True)
        self._targets = targets
        self._consumer = _consumer(address)
        self._journals = Journals(journals)
        self._is_over = threading.Event()
        self.early: list[Written] = []
        self.seen_count = 0

    def run(self) -> None:
        self._consumer.assign([TopicPartition(*tp, 0) for tp in self._targets])
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
def working(address: str, folder: Path, seed: int, lanes: Sequence[Lane]) -> Iterator[list[Slot]]:
    """All workers, which are gone when the block ends."""
    slots = [
        Slot(lane, number, address, folder, seed)
        for lane in lanes
        for number in range(len(lane.workers))
    ]
    try:
        for slot in slots:
            slot.start()
        yield slots
    finally:
        for slot in slots:
            slot.kill()


def fill(address: str, lane: Lane, count: int) -> set[str]:
    """Write what is to be read; the name of each record."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for number in range(count):
        producer.produce(lane.source, b"%d" % number, partition=number % lane.source_partitions)
        if number % 10_000 == 0:
            producer.flush(_PATIENCE_S)
    assert producer.flush(_PATIENCE_S) == 0
    return {
        f"{lane.source}/{n % lane.source_partitions}/{n // lane.source_partitions}"
        for n in range(count)
    }


def read_committed(address: str, targets: list[Partition]) -> list[Written]:
    """Everything that a reader of committed records finds."""
    consumer = _consumer(address, **{"enable.partition.eof": True})
    consumer.assign([TopicPartition(*tp, 0) for tp in targets])
    found: list[Written] = []
    ends: set[tuple[str | None, int | None]] = set()
    until_s = time.monotonic() + _PATIENCE_S
    while len(ends) < len(targets):
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
