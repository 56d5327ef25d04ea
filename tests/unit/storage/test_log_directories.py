"""Directories of logs: found, made, set aside and removed."""

import errno
from pathlib import Path
from random import Random

import pytest

from fakes import build
from fakes.log_dirs import (
    CLICKS,
    ORDERS,
    ROOT,
    TOPIC_ID,
    contents,
    create,
    damages,
    filled,
    open_dir,
    remove,
)
from fakes.memory_files import MemoryFiles
from ottla.config import TopicConfig
from ottla.errors import StorageFailed
from ottla.model import TopicPartition
from ottla.records.crc import crc32c
from ottla.storage.files import OsFiles
from ottla.storage.log_dir import LogDir

MANY = [TopicPartition("many", index) for index in range(20)]


def test_partition_metadata_is_in_kafkas_format(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    content = files.read_whole(ROOT / "orders-0" / "partition.metadata")
    kafkas = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert content == kafkas + b"crc32c: %08x\n" % crc32c(kafkas)  # Kafka reads two lines


def test_partition_metadata_of_old_gets_a_checksum_once(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    log_dir.close()
    path = ROOT / "orders-0" / "partition.metadata"
    with_checksum = files.read_whole(path)
    files.create(path).append(b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n")
    files = files.kill()
    log_dir = LogDir(files, ROOT)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS, is_checked=False)
    assert log_dir.topic_ids == {ORDERS: TOPIC_ID}
    assert files.read_whole(path) == with_checksum


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\ncrc32c: 00000000\n",
        b"\xff",
    ],
)
def test_a_log_that_does_not_say_whose_it_is_is_set_aside(
    files: MemoryFiles, content: bytes
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    log_dir.close()
    files.create(ROOT / "orders-0" / "partition.metadata").append(content)
    before = {name: files.read_whole(path) for name, path in contents(files, "orders-0")}
    again = open_dir(files)
    assert damages(again) == [(0, 3)], "what takes its place goes on behind it"
    assert again.directories.stray_count == 1
    stray = f"orders-0.{0:032x}-stray"
    assert {name: files.read_whole(path) for name, path in contents(files, stray)} == before
    again.close()
    assert open_dir(files).directories.stray_count == 1


def test_a_directory_that_is_missing_without_a_deletion_is_a_failure(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    log = log_dir.logs[ORDERS]
    build.append(log)
    log.roll(build.NOW_MS)
    build.append(log)
    work = log.flushing.begin()
    assert work is not None
    log.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        work.run(OsFiles())


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(
    files: MemoryFiles,
) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    files.fail_next("unlink", errno.EIO)
    with pytest.raises(StorageFailed):
        log_dir.delete_log(ORDERS, Random(1))
    after = files.kill()
    assert any(entry.name.endswith("-delete") for entry in after.list(ROOT))
    assert not open_dir(after).logs
    assert not any(entry.is_dir for entry in after.list(ROOT))


def test_a_file_that_is_not_ours_keeps_a_deleted_log_from_being_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    create(log_dir)
    build.append(log_dir.logs[ORDERS], 3)
    (tmp_path / "orders-0" / "notes.txt").write_text("mine")
    log_dir.delete_log(ORDERS, Random(1))
    stray = tmp_path / f"orders-0.{0:032x}-stray"
    assert (stray / "notes.txt").read_text() == "mine"
    assert (stray / f"{0:020d}.log").stat().st_size > 0
    assert log_dir.directories.stray_count == 1
    (said,) = [line for line in caplog.records if line.getMessage() == "log set aside"]
    assert "'notes.txt' in it is not ours" in vars(said)["reason"]
    log_dir.close()


def test_a_log_that_lies_where_a_new_one_goes_is_set_aside_and_not_written_over(
    tmp_path: Path,
) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(b"records of somebody")
    create(log_dir)
    stray = tmp_path / f"orders-0.{0:032x}-stray"
    assert (stray / f"{0:020d}.log").read_bytes() == b"records of somebody"
    assert log_dir.logs[ORDERS].end_offset == 0
    log_dir.close()


def test_what_a_failed_attempt_to_make_a_log_left_is_removed(tmp_path: Path) -> None:
    log_dir = LogDir(OsFiles(), tmp_path)
    log_dir.open_logs(lambda tp: TopicConfig(), build.NOW_MS)
    log_dir.prepare_log(ORDERS, TOPIC_ID)
    log_dir.prepare_log(CLICKS, TOPIC_ID)
    with (tmp_path / str(CLICKS) / f"{0:020d}.log").open("wb") as file:
        file.write(b"a record")
    log_dir.directories.remove_unmade(ORDERS)
    log_dir.directories.remove_unmade(CLICKS)
    assert not (tmp_path / str(ORDERS)).exists()
    assert (tmp_path / str(CLICKS)).exists()
    log_dir.release()


def test_what_lies_where_a_lost_log_was_is_set_aside() -> None:
    files = filled(is_closed=True)
    remove(files, ROOT / str(ORDERS))
    files.make_dir(ROOT / str(ORDERS))
    files.create(ROOT / str(ORDERS) / f"{0:020d}.timeindex").append(b"left")
    log_dir = open_dir(files)
    assert damages(log_dir) == [(0, 5)]
    assert log_dir.directories.stray_count == 1


def test_what_has_the_name_of_one_of_many_new_logs_is_set_aside(files: MemoryFiles) -> None:
    log_dir = open_dir(files)
    create(log_dir)
    build.append(log_dir.logs[ORDERS])
    log_dir.forget_log(ORDERS, Random(1))
    log_dir.prepare_logs([(tp, TOPIC_ID) for tp in (ORDERS, *MANY)])
    assert log_dir.directories.stray_count == 1
    assert log_dir.adopt_log(ORDERS, TOPIC_ID, TopicConfig(), build.NOW_MS).end_offset == 0
