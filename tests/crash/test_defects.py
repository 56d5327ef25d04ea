"""A defect of the broker: the process ends and says why, and nothing that it promised is lost."""

import asyncio
import contextlib
import functools
import importlib
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from crash import defective
from crash.defective import ARMED
from crash.in_process import serving
from crash.load import (
    PATIENCE_S,
    SILENT,
    STEADY,
    Load,
    check_promises,
    lost,
    promises_of,
    read_all,
)
from crash.processes import COMMAND, BrokerProcess, broker_process, free_port
from crash.topics import admin_of, create_topics
from fakes.faulty_files import FaultyFiles
from ottla import testing
from ottla.clock import SystemClock
from ottla.cluster.store import Put
from ottla.cluster.store_sqlite import STORE_FILES, SqliteStore
from ottla.cluster.values import topic_key
from ottla.storage.flusher import ThreadFlusher
from ottla.storage.log_flush import FlushWork

_PARTITIONS: Final = [("t", 0), ("t", 1)]
_FEW: Final = 20  # acknowledgements, before and after
_BATCHES_MAX: Final = 500  # a few fill a segment of a compacted topic; half a minute of trying
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}
_POLLS_MAX: Final = 300
_ROUNDS: Final = 30  # of syncs that go well
_ONCE: Final = {"message.timeout.ms": 2000}
_OFTEN: Final = (
    *("--set", "log.cleaner.backoff.ms=50"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=100"),
    *("--set", "group.initial.rebalance.delay.ms=50"),
)


def _nightly(*values: object) -> Any:
    """A case that differs from another one only in the place."""
    return pytest.param(*values, marks=pytest.mark.nightly)


class Defective(BrokerProcess):
    """A broker with a place that raises once it is armed."""

    def __init__(self, directory: Path, place: str, kind: str) -> None:
        self.pages = f"127.0.0.1:{free_port()}"
        arguments = (*_OFTEN, "--metrics", self.pages)
        super().__init__(directory / "data", *arguments, log_file=directory / "broker.log")
        self.command = [sys.executable, defective.__file__, place, kind]

    def arm(self) -> None:
        self.signal(signal.SIGUSR1)
        assert self.read_line() == ARMED

    def repair(self) -> None:
        """Start it without the defect."""
        self.command = COMMAND
        self.start()


@contextmanager
def _running(directory: Path, place: str, kind: str) -> Iterator[Defective]:
    broker = Defective(directory, place, kind)
    try:
        broker.start()
        yield broker
    except BaseException:
        sys.stdout.write(broker.said())
        raise
    finally:
        broker.end()


def _check_over(broker: Defective, place: str, kind: str) -> None:
    """It ended by itself: behind everything else it said is one line that names the defect."""
    assert broker.wait_over() == 1
    said = broker.said()
    assert "Traceback (most recent call last):" in said
    last = said.splitlines()[-1]
    assert " critical ottla.broker the broker was stopped by a defect " in last
    assert f" exception={kind} " in last
    assert f"planted in {place}" in last
    assert f" place={defective.__file__}:" in last
    assert not (broker.data / ".clean-shutdown").exists()


def _duration_ms(said: str) -> int:
    """From the first line about a defect to the last line of all."""
    moments = [
        datetime.fromisoformat(line.split(" ", 1)[0])
        for line in said.splitlines()
        if " critical ottla.broker " in line
    ]
    return (moments[-1] - moments[0]) // timedelta(milliseconds=1)


# On the way to an acknowledgement: producers go on when the broker is back.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("ottla.storage.flusher:ThreadFlusher._sync", "TypeError"),
        ("ottla.broker.handlers.produce:Produce.take", "AssertionError"),
        _nightly("ottla.storage.flusher:ThreadFlusher._run_one", "TypeError"),
        _nightly("ottla.storage.log_core:LogCore.note_durable", "ValueError"),
    ],
)
def test_a_defect_before_an_acknowledgement_ends_the_process_and_loses_nothing(
    place: str, kind: str, tmp_path: Path
) -> None:
    with _running(tmp_path, place, kind) as broker:
        create_topics(admin_of(broker.address), {"t": {}}, partitions=2)
        load = Load(broker.address, "writer", _PARTITIONS, is_idempotent=True)
        load.start()
        try:
            load.wait_acked(_FEW)
            broker.arm()
            _check_over(broker, place, kind)
            broker.repair()
            load.wait_acked(load.acked_count + _FEW)
        finally:
            load.stop()
        promises = promises_of([load])
        assert check_promises(read_all(broker.address, _PARTITIONS), promises) >= 2 * _FEW
        assert broker.stop() == 0


# Anywhere else


def _wait(broker: Defective) -> None:
    """Time alone brings the broker there."""


def _produce(broker: Defective) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "logger": SILENT, **STEADY})
    for number in range(_BATCHES_MAX):
        if not broker.is_running:
            break
        producer.produce("c", "." * 5000, str(number % 7))
        producer.flush(0.1)
    producer.purge()
    producer.flush()


def _create_topic(broker: Defective) -> None:
    admin = admin_of(broker.address)  # asks as long as it lives
    (created,) = admin.create_topics([NewTopic("t", 1)]).values()
    _wait_done(created, broker)


def _delete_records(broker: Defective) -> None:
    admin = admin_of(broker.address)
    (deleted,) = admin.delete_records([TopicPartition("c", 0, 0)]).values()
    _wait_done(deleted, broker)


def _wait_done(response: Future[Any], broker: Defective) -> None:
    """Keep an admin client until it has a response, or the broker is over."""
    for _ in range(_POLLS_MAX):
        if response.done() or not broker.is_running:
            break
        wait([response], timeout=0.1)


def _scrape(broker: Defective) -> None:
    url = f"http://{broker.pages}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url):
        pytest.fail("there is a page")


def _join_group(broker: Defective) -> None:
    more: dict[str, Any] = {"group.id": "g", "logger": SILENT, **STEADY}
    consumer = Consumer({"bootstrap.servers": broker.address, **more})
    consumer.subscribe(["c"])
    for _ in range(_POLLS_MAX):
        if not broker.is_running:
            break
        consumer.poll(0.1)
    consumer.close()


def _commit_transaction(broker: Defective) -> None:
    more: dict[str, Any] = {"transactional.id": "x", "logger": SILENT, **STEADY}
    producer = Producer({"bootstrap.servers": broker.address, **more})
    with contextlib.suppress(KafkaException):
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("c", "value", "key")
        producer.commit_transaction(1)


class Case(NamedTuple):
    """A place, what is raised there, and what brings the broker there."""

    place: str
    kind: str
    provoke: Callable[[Defective], None]

    def __str__(self) -> str:
        return self.place.rpartition(":")[2]


# One of each kind: a callback, a task that nobody awaits, a chore, a worker's thread.
_EVERY_TIME: Final = (
    Case("ottla.broker.fairness:Turns._flush_dirty", "TypeError", _produce),
    Case("ottla.replication.replicas:Replicas._apply", "KeyError", _create_topic),
    Case("ottla.broker.server:Server.sweep", "TypeError", _wait),
    Case("ottla.storage.delete_records:Deletions._write", "TypeError", _delete_records),
)
_NIGHTLY: Final = (
    Case("ottla.storage.flusher:ThreadFlusher._begin_round", "KeyError", _produce),
    Case("ottla.storage.flusher:ThreadFlusher._end_round", "AssertionError", _produce),
    Case("ottla.storage.delete_records:Deletions._end", "KeyError", _delete_records),
    Case("ottla.storage.small_file:Replacement.run", "TypeError", _produce),
    Case("ottla.storage.log_dir:LogDir.end_checkpoint", "KeyError", _produce),
    Case("ottla.storage.log_dir:LogDir.prepare_log", "TypeError", _create_topic),
    Case("ottla.storage.compaction_pass:Pass.run_next", "AssertionError", _produce),
    Case("ottla.storage.cleaner:Cleaner._note", "TypeError", _produce),
    Case("ottla.broker.handlers.produce:_WaitingBatch.settle", "KeyError", _produce),
    Case("ottla.broker.connection:Connection.flush_responses", "IndexError", _produce),
    Case("ottla.broker.connection:Connection.connection_made", "TypeError", _produce),
    Case("ottla.broker.membership:Membership.check_disk", "KeyError", _wait),
    Case("ottla.cluster.sqlite_database:Database.poll", "TypeError", _wait),
    Case("ottla.cluster.store_sqlite:SqliteStore.keep_alive", "KeyError", _wait),
    Case("ottla.cluster.state:ClusterState._advance", "KeyError", _create_topic),
    Case("ottla.coordinator.runtime.shard:Shard._pass_time", "KeyError", _join_group),
    Case("ottla.coordinator.runtime.shard:Shard._write", "TypeError", _join_group),
    Case(
        "ottla.coordinator.transactions.markers:Markers.write_all", "TypeError", _commit_transaction
    ),
    Case("ottla.broker.produce_verification:verify_partitions", "TypeError", _commit_transaction),
    Case("ottla.broker.metrics:MetricsPages._respond", "TypeError", _scrape),
)


@pytest.mark.parametrize("case", [*_EVERY_TIME, *_NIGHTLY], ids=str)
def test_every_place_is_there(case: Case) -> None:
    """Also those that only the nightly run plants a defect in."""
    module, _, path = case.place.partition(":")
    assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module)))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*_EVERY_TIME, *map(_nightly, _NIGHTLY)], ids=str)
def test_a_defect_ends_the_process_and_its_last_line_says_which(
    case: Case, tmp_path: Path, report: Callable[[str], None]
) -> None:
    with _running(tmp_path, case.place, case.kind) as broker:
        create_topics(admin_of(broker.address), {"c": _COMPACTED})
        broker.arm()
        case.provoke(broker)
        _check_over(broker, case.place, case.kind)
        report(f"{case}: over {_duration_ms(broker.said())} ms after the defect")


def test_a_broker_that_cannot_read_the_clusters_state_any_more_ends_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    async def write_as_a_newer_version(file: Path) -> None:
        store = await SqliteStore.open(file, SystemClock())
        await store.commit([Put(topic_key("t"), b'{"format": 99}')])
        await store.close()

    with broker_process(tmp_path / "data") as broker:
        asyncio.run(write_as_a_newer_version(broker.data / STORE_FILES[0]))
        assert broker.wait_over() == 2
        assert "start it with the newer version" in broker.said().splitlines()[-1]
        assert not (broker.data / ".clean-shutdown").exists()


# What was not synced


def test_nothing_is_acknowledged_that_a_defect_kept_from_being_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk forgets what was not synced, as in a power cut: no acknowledged record is in it."""
    files, rounds = FaultyFiles(), count()
    real = ThreadFlusher._sync

    def sync_some(flusher: ThreadFlusher, round_: list[FlushWork]) -> None:
        if next(rounds) < _ROUNDS:
            real(flusher, round_)
        else:
            raise KeyError("planted")

    monkeypatch.setattr(ThreadFlusher, "_sync", sync_some)
    load: Load | None = None
    with pytest.raises(KeyError, match="planted"), serving(tmp_path / "data", files) as served:  # noqa: PT012
        create_topics(admin_of(served.address), {"t": {}}, partitions=2)
        load = Load(served.address, "writer", _PARTITIONS, is_idempotent=True, **_ONCE)
        load.start()
        load.wait_failed(1)  # the broker has gone
        load.stop()
    assert load is not None
    assert load.acked_count > 0
    assert files.forget_unsynced() > 0, "something was written and not synced"
    monkeypatch.setattr(ThreadFlusher, "_sync", real)
    with testing.broker(data=tmp_path / "data") as address:
        assert not lost(read_all(address, _PARTITIONS), promises_of([load]))


# Readiness


def test_a_sync_that_does_not_return_makes_the_broker_unready_until_it_does(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    with serving(tmp_path / "data", files, readiness_stall_ms="100") as served:
        create_topics(admin_of(served.address), {"t": {}})
        assert served.page("/readyz") == (200, "ready\n")
        assert served.figure("ottla_sync_unfinished_seconds") == 0
        producer = Producer({"bootstrap.servers": served.address, "acks": "all"})
        settled: list[object] = []
        files.hold_syncs()
        try:
            producer.produce("t", "x", on_delivery=lambda error, _: settled.append(error))
            producer.poll(0)
            served.wait_page("/readyz", 503)
            _, said = served.page("/readyz")
            assert said.startswith("not ready: the disk has been syncing for "), said
            assert said.count("\n") == 1
            assert served.figure("ottla_sync_unfinished_seconds") > 0.1
            assert served.page("/healthz")[0] == 200
            producer.poll(0)
            assert settled == []
        finally:
            files.release_syncs()
        assert producer.flush(PATIENCE_S) == 0
        assert settled == [None]
        served.wait_page("/readyz", 200)
