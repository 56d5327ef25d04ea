"""The broker inside a test process: what users of `ottla.testing` and the fixture rely on."""

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import confluent_kafka
import confluent_kafka.admin
import pytest

from fakes.consumed import value_of
from ottla import testing
from ottla.broker.app import Broker
from ottla.broker.background import Chore
from ottla.broker.environment import Environment
from ottla.clock import SystemClock
from ottla.cluster.state import ClusterState
from ottla.errors import InvalidConfig
from ottla.model import Endpoint, TimestampMs
from ottla.replication.replicas import Replicas
from ottla.storage.flusher import ThreadFlusher

PATIENCE_S = 30
TIMES = ("start_ms", "stop_ms")


def produce(address: str, topic: str, value: str) -> None:
    """Write one record and wait until it is acknowledged."""
    problems: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: problems.append(error))
    producer.flush(PATIENCE_S)
    assert problems == [None]


def consume_one(address: str, topic: str) -> str:
    """The first record of the topic's first partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "not used", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        return value_of(message).decode()
    finally:
        consumer.close()


def topics(address: str) -> set[str]:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    return set(admin.list_topics(timeout=PATIENCE_S).topics)


def new_threads(before: set[threading.Thread]) -> list[str]:
    """Threads of brokers that were not there before, and do not end by themselves.

    A broker that other tests of this process share may sync meanwhile, which takes threads.
    """
    new = [
        thread
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("ottla") and not thread.name.startswith("ottla-sync_")
    ]
    for thread in new:
        thread.join(PATIENCE_S)  # a thread without work takes a moment to end
    return [thread.name for thread in new if thread.is_alive()]


def say_hello(address: str) -> bytes:
    """Send an ApiVersions request of version 0, as every client does first; what comes back."""
    endpoint = Endpoint.parse(address)
    with socket.create_connection(endpoint, timeout=PATIENCE_S) as connection:
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
        return connection.recv(65536)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made during this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_leaves_nothing_behind_and_a_consumer_that_waits_holds_up_no_stop(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, "-m", "fakes.left_behind", str(tmp_path), "10"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    runs = json.loads(said.stdout)
    for left in runs:
        assert "cluster.sqlite" in left["during"]
        assert left["directories"] == []
        assert left["threads"] == []
        assert left["files"] == []
        with pytest.raises(ConnectionRefusedError):
            say_hello(left["address"])
        assert left["stop_ms"] < 1000 * PATIENCE_S, "the consumer waits for 200 s"
    start_ms, stop_ms = (statistics.median(run[name] for run in runs) for name in TIMES)
    record_property(
        "figures",
        f"embedded broker with a waiting consumer, medians of {len(runs)}:"
        f" start {start_ms:.1f} ms, stop {stop_ms:.1f} ms",
    )


def test_two_at_once_know_nothing_of_each_other() -> None:
    with testing.broker() as first, testing.broker() as second:
        assert first != second
        produce(first, "only-first", "one")
        produce(second, "only-second", "two")
        assert topics(first) == {"only-first"}
        assert topics(second) == {"only-second"}


def test_settings_reach_the_broker() -> None:
    with testing.broker({"num.partitions": "3"}) as address:
        produce(address, "wide", "x")
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
        assert len(admin.list_topics("wide", timeout=PATIENCE_S).topics["wide"].partitions) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num.partition": "3"}, "unknown broker setting: num.partition"),
        ({"num.partitions": "0"}, "invalid value num.partitions = '0'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_starts(
    settings: Mapping[str, str], said: str, temporary: Path
) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(InvalidConfig, match=said), testing.broker(settings):
        pytest.fail("it started")
    assert new_threads(threads) == []
    assert list(temporary.iterdir()) == []


def test_a_directory_that_is_asked_for_stays_and_the_next_broker_reads_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with testing.broker(data=data) as address:
        produce(address, "kept", "still here")
    assert (data / "kept-0").is_dir()
    with testing.broker(data=data) as address:
        assert consume_one(address, "kept") == "still here"


def test_a_broker_that_cannot_start_raises_why_and_leaves_no_thread(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    threads = set(threading.enumerate())
    with pytest.raises(NotADirectoryError), testing.broker(data=file / "data"):
        pytest.fail("it started")
    assert new_threads(threads) == []


def test_an_error_in_the_test_stops_the_broker_and_is_raised() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), testing.broker():
        raise ZeroDivisionError
    assert new_threads(threads) == []


class BreakableClock(SystemClock):
    """The machine's clock, until `is_broken`: then asking for the time breaks an assertion."""

    is_broken = False

    def now_ms(self) -> TimestampMs:
        assert not self.is_broken, "planted"
        return super().now_ms()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BreakableClock:
    """The clock of the brokers of this test."""
    clock = BreakableClock()
    monkeypatch.setattr(testing, "Environment", lambda: Environment(clock=clock))
    return clock


def try_to_produce(address: str) -> None:
    """Send a record and do not mind what becomes of it."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "message.timeout.ms": 1000, "linger.ms": 0}
    )
    producer.produce("any", "x", partition=0)
    producer.flush(PATIENCE_S)


def test_a_defect_of_the_broker_fails_the_test_that_uses_it(clock: BreakableClock) -> None:
    with pytest.raises(AssertionError, match="planted"), testing.broker() as address:  # noqa: PT012
        produce(address, "any", "x")
        clock.is_broken = True
        try_to_produce(address)


def test_a_defect_is_named_when_the_test_fails_because_of_it(clock: BreakableClock) -> None:
    with pytest.raises(AssertionError, match="planted") as raised, testing.broker() as address:  # noqa: PT012
        produce(address, "any", "x")
        clock.is_broken = True
        try_to_produce(address)
        raise ZeroDivisionError
    assert isinstance(raised.value.__context__, ZeroDivisionError)


def fail(*_: object) -> NoReturn:
    raise KeyError("planted")


def test_a_defect_in_a_thread_of_the_broker_fails_the_test_that_uses_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the directory is free for the next broker, which recovers it."""
    threads = set(threading.enumerate())
    with pytest.raises(KeyError, match="planted"), testing.broker(data=tmp_path) as address:  # noqa: PT012
        produce(address, "any", "x")
        with monkeypatch.context() as patched:
            patched.setattr(ThreadFlusher, "_sync", fail)
            try_to_produce(address)
    assert new_threads(threads) == []
    assert not (tmp_path / ".clean-shutdown").exists()
    with testing.broker(data=tmp_path) as address:
        assert consume_one(address, "any") == "x"


CHORES = [
    *("sweep", "expire", "disk", "watermarks", "unfinished", "sealed partitions"),
    *("deleted topics", "generation", "store revision"),
    *("retention", "compaction", "scrub", "producers", "offsets"),
    *("transactional ids", "acknowledged records", "dead letters", "share states"),
    "checkpoint",
]


@pytest.mark.parametrize("name", CHORES)
def test_a_chore_that_fails_ends_the_broker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Broker._chores

    def chores(broker: Broker) -> list[Chore]:
        found = real(broker)
        assert [chore.name for chore in found] == CHORES
        soon = replace(found[CHORES.index(name)], interval_s=lambda: 0.001, work=fail)
        return [soon if chore.name == name else chore for chore in found]

    monkeypatch.setattr(Broker, "_chores", chores)
    with pytest.raises(KeyError, match="planted"), testing.broker() as address:
        wait_refused(address)


def wait_refused(address: str) -> None:
    """Return when nobody listens at this address any more."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            say_hello(address)
        except ConnectionError:
            return
    pytest.fail("the broker still answers")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Replicas, "_apply"),  # the task that applies images
        (ClusterState, "_advance"),  # the task that follows the store
        (Broker, "_register"),  # the start itself
    ],
)
def test_a_defect_while_the_broker_starts_is_raised_and_leaves_no_clean_mark(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with testing.broker(data=tmp_path) as address:
        produce(address, "any", "x")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(KeyError, match="planted"), testing.broker(data=tmp_path):
            pytest.fail("it started")
    assert not (tmp_path / ".clean-shutdown").exists()
    with testing.broker(data=tmp_path) as address:
        assert consume_one(address, "any") == "x"


def test_a_defect_while_the_broker_stops_is_raised_and_leaves_no_clean_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KeyError, match="planted"), testing.broker(data=tmp_path) as address:  # noqa: PT012
        produce(address, "any", "x")
        monkeypatch.setattr(Replicas, "close", fail)
    assert not (tmp_path / ".clean-shutdown").exists()


class TestFixture:
    """`ottla_broker`, as it comes with the package."""

    @pytest.fixture
    def ottla_settings(self) -> Mapping[str, str]:
        return {"auto.create.topics.enable": "false"}

    def test_its_settings_are_a_fixture_to_override(self, ottla_broker: str) -> None:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": ottla_broker})
        found = admin.list_topics("unmade", timeout=PATIENCE_S).topics["unmade"]
        assert found.error is not None


def test_the_fixture_is_a_broker_of_its_own(ottla_broker: str) -> None:
    produce(ottla_broker, "mine", "hello")
    assert consume_one(ottla_broker, "mine") == "hello"
