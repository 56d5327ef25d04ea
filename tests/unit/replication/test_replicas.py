"""What the owner of all partitions leaves to the worker."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.clock import SystemClock
from ottla.config import TopicConfig
from ottla.model import BrokerId, TopicPartition, Uuid
from ottla.replication.replicas import Replicas
from ottla.storage.cleaner import Cleaner
from ottla.storage.deletions import Deletions
from ottla.storage.flusher import InlineFlusher
from ottla.storage.log_dir import LogDir
from ottla.storage.scrub import Scrubber

ORDERS = TopicPartition("orders", 0)


class LaterWorker:
    """Works when it is told to."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def run(self, step: Callable[..., Any], done: Callable[[Any], None]) -> None:
        self.steps.append(lambda: done(step(lambda: None)))

    def close(self) -> None:
        return


def test_the_files_of_old_segments_are_removed_by_the_worker() -> None:
    files, worker = MemoryFiles(), LaterWorker()
    log_dir = LogDir(files, Path("/data"))
    Replicas(
        log_dir,
        lambda settings: TopicConfig(),
        SystemClock(),
        Random(1),
        broker_id=BrokerId(0),
        flusher=InlineFlusher(files, on_failed=log_dir.take_offline),
        cleaner=Cleaner(files, worker),
        worker=worker,
        deletions=Deletions(log_dir, worker),
        scrubber=Scrubber(files, worker, log_dir.path),
        soon=lambda callback: callback(),
        remember=lambda revision: None,
    )
    config = TopicConfig(retention_bytes=0)
    log = log_dir.create_log(ORDERS, Uuid(bytes(range(16))), config, build.NOW_MS)
    build.append(log)
    log.roll(build.NOW_MS)
    log.flush()
    assert log.delete_old_segments(build.NOW_MS) == 1

    def left() -> list[str]:
        names = [entry.name for entry in files.list(log.directory)]
        return [name for name in names if name.endswith(".deleted")]

    assert left() == [f"{0:020d}.log.deleted"]
    for step in worker.steps:
        step()
    assert left() == []
    assert log_dir.offline_reason is None
