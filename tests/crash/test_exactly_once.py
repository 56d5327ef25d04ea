"""Exactly once, while clients and the broker are killed at any moment.

Processes with librdkafka and with aiokafka read, transform and write in transactions, of which 15
percent abort. They are killed with SIGKILL, replaced while they still run, and the broker is
killed under them. In the end every record that was read must have been written exactly once for
readers of committed records, every transaction must be whole or not there at all, none that was
aborted may be seen, and none may be seen before it was committed.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from compat.raw import RawConnection, connected
from compat.wire import list_offset
from crash.exactly_once import (
    RECORDS_MAX,
    TIMEOUT_S,
    Journals,
    Lane,
    Reader,
    Slot,
    Written,
    check,
    fill,
    read_committed,
    targets_of,
    working,
)
from crash.load import Partition
from crash.processes import BrokerProcess, broker_process, run_ottla
from crash.topics import admin_of, create_topics
from crash.transformer import OUTPUT_PARTITIONS
from ottla.errors import ErrorCode
from ottla.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

_TRANSACTIONS: Final = int(os.environ.get("OTTLA_CRASH_TRANSACTIONS", "200"))
_PAUSE_MAX_S: Final = float(os.environ.get("OTTLA_CRASH_PAUSE_S", "2"))  # between two kills
_SLACK_S: Final = 5.0  # for a busy machine, on top of it
_PATIENCE_S: Final = 60.0
_SILENCE_S: Final = 120.0  # so long nothing may come out before the test gives up
_WORKERS: Final = int(os.environ.get("OTTLA_CRASH_WORKERS", "2"))  # of each client library
_INPUT_PARTITIONS: Final = 2 * _WORKERS
_SETTINGS: Final = (
    "--set=group.initial.rebalance.delay.ms=0",
    "--set=group.min.session.timeout.ms=1000",
    "--set=offsets.topic.num.partitions=4",
    "--set=transaction.state.log.num.partitions=4",
    "--set=log.flush.offset.checkpoint.interval.ms=100",
)


LANES: Final = (
    Lane("confluent", tuple(() for _ in range(_WORKERS)), _INPUT_PARTITIONS),
    Lane(
        "aiokafka",
        tuple((2 * number, 2 * number + 1) for number in range(_WORKERS)),
        _INPUT_PARTITIONS,
    ),
)
TARGETS: Final = targets_of(LANES)
OFFSETS: Final = [("__consumer_offsets", index) for index in range(4)]
WATCHED: Final[list[Partition]] = [*TARGETS, *OFFSETS]
LATEST: Final = -1
UNCOMMITTED, COMMITTED = 0, 1


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


@pytest.mark.slow
@pytest.mark.timeout(300 + _TRANSACTIONS)
def test_kills_of_clients_and_broker_lose_double_tear_and_leak_nothing(
    tmp_path: Path, rng: Random, report: Callable[[str], None]
) -> None:
    records = _TRANSACTIONS * (RECORDS_MAX + 1) // 2
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
        with working(broker.address, folder, rng.getrandbits(32), LANES) as slots:
            watch = Watch(broker.address)
            reader = Reader(broker.address, folder, TARGETS)
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
        seen = read_committed(broker.address, TARGETS)
        check(seen, journals, read_from)
        assert reader.early == []
        assert watch.stuck_max_s <= TIMEOUT_S + _SLACK_S
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
    group = OffsetFetchRequestGroup(group_id=lane.group, topics=[wanted])
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
    until_s = time.monotonic() + TIMEOUT_S + _PATIENCE_S
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
