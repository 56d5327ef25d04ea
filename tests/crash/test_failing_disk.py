"""A disk that answers with errors: nothing more is acknowledged, and nothing that was is lost."""

import errno
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from crash.in_process import serving
from crash.load import PATIENCE_S, SILENT, Load, check_promises, promises_of, read_all
from crash.topics import admin_of, create_topics, partition_counts
from fakes.faulty_files import FaultyFiles
from ottla import testing
from ottla.storage.files import OsFiles

_OFTEN: Final = {"log_flush_offset_checkpoint_interval_ms": "100"}
# Errors are shown, not retried; and nobody waits for a leader that is not coming back.
_ONCE: Final[dict[str, Any]] = {"message.send.max.retries": 0, "message.timeout.ms": 2000}
_IN_VAIN: Final = KafkaError._MSG_TIMED_OUT
_PARTITIONS: Final = [("t", 0), ("t", 1)]


def test_a_failed_sync_ends_all_acknowledging_and_a_restart_brings_back_what_was_promised(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    with serving(tmp_path / "data", files) as served:
        create_topics(admin_of(served.address), {"t": {}}, partitions=2)
        with _loaded(served.address, is_idempotent=False, **_ONCE) as load:
            load.wait_acked(500)
            files.fail("sync")
            load.wait_failed(1)
            promises = promises_of([load])
            load.wait_failed(len(load.failed) + 50)
            assert promises_of([load]) == promises, "acknowledged after a failed sync"
        assert load.failed[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert served.page("/readyz")[0] == 503
        assert served.page("/healthz")[0] == 200
        assert "ottla_log_dir_offline 1.0" in served.page("/metrics")[1]
        described = admin_of(served.address).list_topics(timeout=PATIENCE_S)
        assert {one.leader for one in described.topics["t"].partitions.values()} == {-1}
        files.heal()
        assert _send_one(served.address) == _IN_VAIN, "a failed sync is not tried again"
    assert not (tmp_path / "data" / ".clean-shutdown").exists()
    assert files.forget_unsynced() > 0
    with testing.broker(data=tmp_path / "data") as address:
        found = read_all(address, _PARTITIONS)
        assert check_promises(found, promises) >= 500
        assert _send_one(address) is None


def test_a_failed_write_takes_the_directory_offline(tmp_path: Path) -> None:
    files = FaultyFiles()
    with serving(tmp_path / "data", files) as served:
        create_topics(admin_of(served.address), {"t": {}}, partitions=2)
        assert _send_one(served.address) is None
        files.fail("append", suffix=".log")
        assert _send_one(served.address) == KafkaError.KAFKA_STORAGE_ERROR
        files.heal()
        assert _send_one(served.address) == _IN_VAIN
        assert served.page("/readyz")[0] == 503
    with testing.broker(data=tmp_path / "data") as address:
        assert len(read_all(address, [("t", 0)])["t", 0]) == 1


@pytest.mark.parametrize("operation", ["append", "create"])
@pytest.mark.parametrize(
    "suffix",
    [".snapshot", ".index.tmp", ".index.saving", "checkpoint.tmp", "log-states.tmp", ".log"],
)
def test_a_full_disk_is_survived_wherever_it_shows(
    tmp_path: Path, operation: str, suffix: str
) -> None:
    """Segments roll, checkpoints and retention run; each of them may be the one that fails."""
    files = FaultyFiles()
    often = {**_OFTEN, "log_retention_check_interval_ms": "50"}
    with serving(tmp_path / "data", files, **often) as served:
        settings = {"segment.bytes": "4096", "retention.ms": "100"}
        large = {"index.interval.bytes": "0"}  # its indexes soon need files of their own
        create_topics(admin_of(served.address), {"t": large}, partitions=2)
        create_topics(admin_of(served.address), {"fleeting": settings})
        with _loaded(served.address, is_idempotent=True, also=[("fleeting", 0)]) as load:
            load.wait_acked(200)
            files.fail(operation, errno.ENOSPC, suffix=suffix)
            files.wait_failed(5, PATIENCE_S)
            files.heal()
            load.wait_acked(load.acked_count + 500)
        promises = promises_of([load])
        for promised in promises.values():
            del promised["fleeting", 0]  # retention has taken what was promised there
        check_promises(read_all(served.address, _PARTITIONS), promises)
        assert served.page("/readyz")[0] == 200
    assert not load.failed
    with testing.broker(data=tmp_path / "data") as address:
        check_promises(read_all(address, _PARTITIONS), promises)


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get
)
def test_a_topic_whose_log_cannot_be_made_is_refused_and_can_be_made_later(
    tmp_path: Path, number: int
) -> None:
    files = FaultyFiles()
    with serving(tmp_path / "data", files) as served:
        admin = admin_of(served.address)
        create_topics(admin, {"t": {}})
        files.fail("create", number, suffix=".log")
        with pytest.raises(KafkaException) as refused:
            create_topics(admin, {"new": {}}, partitions=3)
        assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert refused.value.args[0].str(), "it is told why"
        (grown,) = admin.create_partitions([NewPartitions("t", 2)]).values()
        with pytest.raises(KafkaException) as refused:
            grown.result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert set(admin.list_topics(timeout=PATIENCE_S).topics) == {"t"}
        assert _send_one(served.address) is None, "what is there already is served"
        files.heal()
        create_topics(admin, {"new": {}}, partitions=3)
        assert partition_counts(admin)["new"] == 3
        wait_led(admin, "t", 2)
    assert not list((tmp_path / "data").glob("*-delete"))


def wait_led(admin: AdminClient, topic: str, count: int) -> None:
    """Returns when every partition of a topic has a leader: logs are tried again every second."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        if [one.leader for one in partitions.values()] == [0] * count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{topic} never had {count} partitions")


def test_a_directory_that_may_not_be_written_refuses_a_topic_and_serves_the_others(
    tmp_path: Path,
) -> None:
    """A real one, whose flag no user may override, not even root."""
    data = tmp_path / "data"
    with testing.broker(data=data) as address:
        admin = admin_of(address)
        create_topics(admin, {"t": {}})
        if (problem := _set_immutable(data, "+i")) is not None:
            pytest.skip(problem)
        try:
            with pytest.raises(KafkaException) as refused:
                create_topics(admin, {"new": {}})
        finally:
            assert _set_immutable(data, "-i") is None
        assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
        assert _send_one(address) is None
        create_topics(admin, {"new": {}})


def _set_immutable(directory: Path, flag: str) -> str | None:
    """Why a directory cannot be made unwritable for everybody here; None when it is done."""
    if shutil.which("chattr") is None:
        return "making a directory unwritable for root needs chattr, which is not installed"
    done = subprocess.run(["chattr", flag, directory], capture_output=True, text=True, check=False)
    return done.stderr.strip() or None


def test_a_sync_that_fails_while_stopping_leaves_no_clean_mark(tmp_path: Path) -> None:
    files = FaultyFiles()
    with serving(tmp_path / "data", files) as served:
        create_topics(admin_of(served.address), {"t": {"durability": "replicated"}}, partitions=2)
        assert _send_one(served.address) is None
        files.fail("sync")
    assert not (tmp_path / "data" / ".clean-shutdown").exists()
    with testing.broker(data=tmp_path / "data") as address:
        assert len(read_all(address, [("t", 0)])["t", 0]) == 1


@contextmanager
def _loaded(
    address: str, *, is_idempotent: bool, also: list[tuple[str, int]] | None = None, **more: Any
) -> Iterator[Load]:
    partitions = [*_PARTITIONS, *(also or [])]
    load = Load(address, "writer", partitions, is_idempotent=is_idempotent, **more)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def _send_one(address: str) -> int | None:
    """Write a record; the code of the error that it met."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "logger": SILENT, **_ONCE})
    producer.produce(
        "t", partition=0, key="one", value="0 .", on_delivery=lambda error, _: errors.append(error)
    )
    assert producer.flush(PATIENCE_S) == 0
    (error,) = errors
    return None if error is None else error.code()


def test_the_faulty_files_are_as_good_as_the_real_ones_until_told(tmp_path: Path) -> None:
    for files in (OsFiles(), FaultyFiles()):
        file = files.create(tmp_path / "x.log")
        file.append(b"abc")
        file.sync()
        assert files.open(tmp_path / "x.log").read(0, 10) == b"abc"
