"""A disk that is full: an operator's problem, which costs nothing that was acknowledged."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from crash.load import PATIENCE_S, SILENT, STEADY, Letter, read_all
from crash.mounts import SmallDisk
from crash.processes import broker_process
from crash.topics import admin_of, create_topics, partition_counts
from fakes.consumed import position_of

_SEGMENTS: Final = {"segment.bytes": "1000000"}
_SETTINGS: Final = (
    "--set=log.flush.offset.checkpoint.interval.ms=100",
    "--set=log.retention.check.interval.ms=100",
)
_HOUR_MS: Final = 3_600_000
_LEASE_S: Final = 10  # how long a silent broker counts as alive


class Writer:
    """Writes one record at a time, without retries, and remembers what was acknowledged."""

    def __init__(self, address: str) -> None:
        self.acked: dict[str, list[Letter]] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": False,
                "message.send.max.retries": 0,
                "linger.ms": 0,
                "logger": SILENT,
                **STEADY,
            }
        )
        self._number = 0

    def send(self, topic: str, size_bytes: int, *, timestamp_ms: int = 0) -> KafkaError | None:
        outcome: list[KafkaError | None] = []
        number = self._number
        self._number += 1

        def settled(error: KafkaError | None, message: Message) -> None:
            outcome.append(error)
            if error is None:
                _, _, offset = position_of(message)
                letter = Letter(offset, "writer", number)
                self.acked.setdefault(topic, []).append(letter)

        value = f"{number} ".encode() + bytes(size_bytes)
        self._producer.produce(
            topic, value, "writer", 0, on_delivery=settled, timestamp=timestamp_ms
        )
        assert self._producer.flush(PATIENCE_S) == 0
        return outcome[0]

    def fill(self, topic: str, size_bytes: int) -> list[KafkaError]:
        """Write until there is no room for more; the errors of a few attempts after that."""
        errors: list[KafkaError] = []
        for _ in range(5000):
            error = self.send(topic, size_bytes)
            if error is not None:
                errors.append(error)
            if len(errors) == 5:
                return errors
        raise AssertionError("the disk does not fill")

    def check(self, address: str, *topics: str) -> None:
        """Everything acknowledged is there, and nothing that was refused."""
        found = read_all(address, [(topic, 0) for topic in topics])
        for topic in topics:
            assert found[topic, 0] == self.acked[topic], topic


@pytest.mark.slow
def test_a_full_disk_refuses_serves_and_recovers_without_a_restart(
    small_disk: SmallDisk, tmp_path: Path, report: Callable[[str], None]
) -> None:
    data = small_disk.path / "data"
    with broker_process(data, *_SETTINGS, log_file=tmp_path / "broker.log") as broker:
        admin = admin_of(broker.address)
        # A reader's first question for a coordinator makes the groups' topic: while there is room.
        admin.list_consumer_groups(request_timeout=PATIENCE_S).result()
        next(iter(admin.describe_consumer_groups(["nobody"]).values())).exception(PATIENCE_S)
        create_topics(admin, {"kept": _SEGMENTS, "old": _SEGMENTS, "calm": {}})
        create_topics(admin, {"stale": {"retention.ms": str(_HOUR_MS)}})
        writer = Writer(broker.address)
        for _ in range(60):
            assert writer.send("old", 50_000) is None
        assert writer.send("calm", 100) is None
        # Retention wants to roll this one's segment while there is no room for another.
        soon_ms = time.time_ns() // 1_000_000 - _HOUR_MS + 5000
        assert writer.send("stale", 100, timestamp_ms=soon_ms) is None
        full_s = time.monotonic()
        errors = [error for size in (50_000, 2000, 50) for error in writer.fill("kept", size)]
        assert {error.code() for error in errors} == {KafkaError.KAFKA_STORAGE_ERROR}
        writer.check(broker.address, "kept", "old", "calm")
        # Longer than the broker's lease, which it cannot write down now.
        while time.monotonic() - full_s < _LEASE_S + 3:
            assert writer.send("kept", 50_000) is not None
            time.sleep(0.5)
        writer.check(broker.address, "kept", "old", "calm")
        del writer.acked["old"]
        _delete_records(admin, "old")
        assert writer.send("calm", 100) is None
        for _ in range(10):
            assert writer.send("kept", 50_000) is None
        writer.check(broker.address, "kept", "calm")
        (deleted,) = admin.delete_topics(["old"]).values()
        deleted.result(PATIENCE_S)
        _create_when_registered(admin, "new")
        assert writer.send("new", 100) is None
        assert partition_counts(admin_of(broker.address)) == dict.fromkeys(
            ("kept", "calm", "stale", "new"), 1
        )
        broker.kill()
        broker.start()
        writer.check(broker.address, "kept", "calm", "new")
        assert broker.stop() == 0
    count = sum(map(len, writer.acked.values()))
    report(f"disk full for {_LEASE_S + 3} s: {count} acknowledged records, 0 lost")


@pytest.mark.slow
def test_on_a_full_disk_topics_can_be_deleted_and_groups_looked_for(
    small_disk: SmallDisk, tmp_path: Path, report: Callable[[str], None]
) -> None:
    """There is a reserve for what makes room again, and for little things that are needed to."""
    data = small_disk.path / "data"
    # The writer asks about a topic that it once wrote to, which would make it again.
    settings = (*_SETTINGS, "--set=auto.create.topics.enable=false")
    with broker_process(data, *settings, log_file=tmp_path / "broker.log") as broker:
        admin = admin_of(broker.address)
        create_topics(admin, {"kept": _SEGMENTS, "old": _SEGMENTS, "stale": _SEGMENTS})
        writer = Writer(broker.address)
        for _ in range(60):
            assert writer.send("old", 50_000) is None
        assert writer.send("stale", 100) is None
        full_s = time.monotonic()
        for size in (50_000, 2000, 50):
            writer.fill("kept", size)
        while time.monotonic() - full_s < _LEASE_S + 3:  # the lease is kept, on a full disk too
            assert writer.send("kept", 50_000) is not None
            time.sleep(0.5)
        assert admin.list_topics(timeout=PATIENCE_S).controller_id == 0
        # The first question for a coordinator makes the groups' topic: sixteen logs.
        described = admin.describe_consumer_groups(["nobody"], request_timeout=PATIENCE_S)
        (answer,) = described.values()
        answer.result(PATIENCE_S)
        # Records go, and stay gone after a kill: that is written down.
        _delete_records(admin, "stale")
        (deleted,) = admin.delete_topics(["old"]).values()
        deleted.result(PATIENCE_S)
        for _ in range(10):
            assert writer.send("kept", 50_000) is None, "what the topic took is free again"
        writer.acked = {"kept": writer.acked["kept"], "stale": []}
        broker.kill()
        broker.start()
        writer.check(broker.address, "kept", "stale")
        assert partition_counts(admin_of(broker.address)) == {"kept": 1, "stale": 1}
        assert broker.stop() == 0
    count = len(writer.acked["kept"])
    report(f"on a full disk: a topic deleted, groups' topic made, {count} records, 0 lost")


def _delete_records(admin: AdminClient, topic: str) -> None:
    """Give room back: every record of a topic goes, and with the records their segments."""
    everything = TopicPartition(topic, 0, -1)
    (deleted,) = admin.delete_records([everything]).values()
    deleted.result(PATIENCE_S)


def _create_when_registered(admin: AdminClient, name: str) -> None:
    """The broker's lease ran out meanwhile; it takes a moment until it has a new one."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            create_topics(admin, {name: {}})
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the broker never registered again")


def _wait_known(address: str) -> None:
    """Return when the broker is a member of its own cluster (again)."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if admin_of(address).list_topics(timeout=PATIENCE_S).controller_id == 0:
            return
        time.sleep(0.1)
    raise AssertionError("the broker never registered again")


@pytest.mark.slow
def test_a_broker_that_was_paused_longer_than_its_lease_comes_back(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path / "data") as broker:
        create_topics(admin_of(broker.address), {"t": {}})
        writer = Writer(broker.address)
        assert writer.send("t", 100) is None
        broker.signal(signal.SIGSTOP)
        time.sleep(_LEASE_S + 1)  # the length of the pause is what is tested
        broker.signal(signal.SIGCONT)
        _wait_known(broker.address)
        assert partition_counts(admin_of(broker.address)) == {"t": 1}
        late = Writer(broker.address)
        assert late.send("t", 100) is None
        assert len(_read_once_led(broker.address)) == 2
        assert broker.stop() == 0


def _read_once_led(address: str) -> list[Letter]:
    """It may still have to find out that its lease is over, and then nobody leads for a moment."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read_all(address, [("t", 0)])["t", 0]
        except KafkaException:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
