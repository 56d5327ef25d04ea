"""The event loop waits for no disk: whatever is synced while a broker serves, a thread does."""

import asyncio
import operator
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from crash.in_process import Served, serving
from crash.load import PATIENCE_S, SILENT, STEADY
from crash.topics import admin_of, create_topics
from ottla.storage.files import Lock, OsFile, OsFiles, StrPath

_OFTEN = {
    "log_flush_offset_checkpoint_interval_ms": "100",
    "log_retention_check_interval_ms": "50",
    "log_cleaner_backoff_ms": "20",
    "log_scrub_interval_ms": "50",
    "log_scrub_max_bytes_per_second": "67108864",
    "group_initial_rebalance_delay_ms": "0",
}
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}
_SHORT = {"segment.bytes": "16384", "retention.bytes": "32768"}


class WatchedFiles(OsFiles):
    """The operating system's files; remembers what was synced on an event loop's thread."""

    def __init__(self) -> None:
        self.by_loops: list[Path] = []
        self.by_threads: set[str] = set()  # the names of files and directories

    def note(self, path: Path) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.by_threads.add(path.name)
        else:
            self.by_loops.append(path)

    def open(self, path: StrPath) -> "WatchedFile":
        return WatchedFile(self, Path(path), os.O_RDWR | os.O_APPEND)

    def create(self, path: StrPath) -> "WatchedFile":
        return WatchedFile(self, Path(path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)

    def sync_dir(self, path: StrPath) -> None:
        self.note(Path(path))
        super().sync_dir(path)

    def sync_all(self, lock: Lock) -> None:
        self.note(Path("the whole disk"))
        super().sync_all(lock)


class WatchedFile(OsFile):
    __slots__ = ("_files", "_path")

    def __init__(self, files: WatchedFiles, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files.note(self._path)
        super().sync()


def test_a_broker_syncs_nothing_on_its_event_loop_while_it_serves(tmp_path: Path) -> None:
    files = WatchedFiles()
    with serving(tmp_path / "data", files, **_OFTEN) as served:
        files.by_loops.clear()  # starting is another matter
        _use_everything(served)
        _wait(lambda: served.figure("ottla_compaction_passes_total") > 0)
        _wait(lambda: served.figure("ottla_scrub_rounds_total") > 0)
        for name in (
            "recovery-point-offset-checkpoint.tmp",
            "log-start-offset-checkpoint.tmp",
            "log-states.tmp",
            "cleaner-offset-checkpoint.tmp",
            "deleted-records-checkpoint.tmp",
            "scrub-checkpoint.tmp",
            "meta.properties.tmp",
        ):
            _wait(partial(operator.contains, files.by_threads, name))
        assert files.by_loops == []


def _use_everything(served: Served) -> None:
    """Topics come, grow and go; records are written, compacted, deleted and committed."""
    admin = admin_of(served.address)
    create_topics(admin, {"compacted": _COMPACTED, "short": _SHORT, "doomed": {}})
    producer = Producer({"bootstrap.servers": served.address, "logger": SILENT, **STEADY})
    for number in range(40):
        for topic in ("compacted", "short", "doomed"):
            producer.produce(topic, "." * 3000, str(number % 3))
        assert producer.flush(PATIENCE_S) == 0
    for future in admin.delete_records([TopicPartition("doomed", 0, 20)]).values():
        future.result(PATIENCE_S)
    for future in admin.create_partitions([NewPartitions("short", 2)]).values():
        future.result(PATIENCE_S)
    _move_in_a_transaction(served.address)
    for future in admin.delete_topics(["doomed"]).values():
        future.result(PATIENCE_S)


def _move_in_a_transaction(address: str) -> None:
    more: dict[str, Any] = {"logger": SILENT, **STEADY}
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x", **more})
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", **more})
    producer.init_transactions(PATIENCE_S)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("short", "moved", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        producer.send_offsets_to_transaction(
            [TopicPartition("compacted", 0, 5)], consumer.consumer_group_metadata(), PATIENCE_S
        )
        end(PATIENCE_S)
    consumer.close()


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)
