"""Data directories with logs, and what is in them."""

from pathlib import Path

from fakes import build
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.model import TopicPartition, Uuid
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_listener import LogDirListener

ROOT = Path("/data")
ORDERS, CLICKS = TopicPartition("orders", 0), TopicPartition("web-clicks", 12)
TOPIC_ID = Uuid(bytes(range(16)))


def open_dir(files: MemoryFiles, listener: LogDirListener | None = None) -> LogDir:
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, listener=listener)
    return log_dir


def create(log_dir: LogDir, tp: TopicPartition = ORDERS) -> None:
    log_dir.create_log(tp, TOPIC_ID, TopicConfig(), build.NOW_MS)


def damages(log_dir: LogDir, tp: TopicPartition = ORDERS) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in log_dir.logs[tp].corrupt]


def contents(files: MemoryFiles, directory: str) -> list[tuple[str, Path]]:
    path = ROOT / directory
    return [(entry.name, path / entry.name) for entry in files.list(path)]


def remove(files: MemoryFiles, directory: Path) -> None:
    """A whole directory is gone, names and all."""
    for entry in files.list(directory):
        files.unlink(directory / entry.name)
    files.sync_dir(directory)
    files.remove_dir(directory)


def filled(count: int = 5, *, is_closed: bool) -> MemoryFiles:
    """A disk with a log of so many records that a checkpoint knows."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], count)
    log_dir.logs[ORDERS].flush()
    log_dir.close() if is_closed else log_dir.checkpoint()
    return files.kill()
