"""Brokers that are stopped or killed under load: nothing lost, nothing twice, all in order."""

import gc
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compat import kcat_client
from compat.adapter import BEGINNING, PATIENCE_S, Client, Received, Sent, wait_until
from compat.clients import LIBRARIES
from compat.confluent_client import ConfluentClient
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.wire import batch, create_topic, fetch, list_offset, produce, topic_id
from ottla.errors import ErrorCode
from ottla.model import ProducerEpoch, ProducerId, Sequence
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.producers import InitProducerIdRequest

# Clients written in Python leave sockets behind when nobody listens at the other end.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

LATEST = -1
TOPIC = "survivors"
CHUNK = 200  # records that a producer has in flight at once
ENDINGS = [signal.SIGTERM, signal.SIGKILL]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker of this test's own."""
    served = ServedBroker(tmp_path / "data", {"log.flush.offset.checkpoint.interval.ms": "100"})
    served.start()
    with connected(served.address) as raw:
        create_topic(raw, TOPIC, segment_bytes=20_000)
    yield served
    served.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # here, and not in the middle of somebody else's test


def end_offset(broker: ServedBroker) -> int:
    with connected(broker.address) as raw:
        return list_offset(raw, TOPIC, LATEST).offset


def has_grown(broker: ServedBroker) -> Callable[[], bool]:
    """True once a chunk of records more than now is there."""
    reached = end_offset(broker)
    return lambda: end_offset(broker) >= reached + CHUNK


def kill_under_load(broker: ServedBroker, ending: signal.Signals) -> None:
    """End and restart the broker twice while somebody produces; returns when that goes on."""
    for _ in range(2):
        wait_until(has_grown(broker), "records arrive")
        status = broker.end(ending)
        assert status == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
        broker.start()
    wait_until(has_grown(broker), "records arrive again")


def read_all(broker: ServedBroker, count: int) -> list[Received]:
    assert end_offset(broker) == count
    return ConfluentClient(broker.address).consume(TOPIC, count)


class Load(threading.Thread):
    """Produces numbers, one after the other, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._stop_asked = threading.Event()
        self.problem: BaseException | None = None
        self.offsets: list[int] = []

    def run(self) -> None:
        try:
            with self._client.producer(idempotent=True) as producer:
                while not self._stop_asked.is_set():
                    first = len(self.offsets)
                    chunk = [Sent(value=b"%d" % n) for n in range(first, first + CHUNK)]
                    self.offsets += producer.send(TOPIC, chunk)
        except BaseException as problem:  # noqa: BLE001  # it is raised again in the test
            self.problem = problem

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()
        if self.problem is not None:
            raise self.problem


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_an_idempotent_producer_outlives_the_broker(
    name: str, ending: signal.Signals, mortal: ServedBroker
) -> None:
    load = Load(LIBRARIES[name](mortal.address))
    load.start()
    try:
        kill_under_load(mortal, ending)
    finally:
        load.finish()
    count = len(load.offsets)
    assert load.offsets == list(range(count))
    assert [one.value for one in read_all(mortal, count)] == [b"%d" % n for n in range(count)]


@pytest.mark.skipif(not kcat_client.is_installed(), reason=kcat_client.MISSING)
@pytest.mark.parametrize("ending", ENDINGS)
def test_kcat_outlives_the_broker(ending: signal.Signals, mortal: ServedBroker) -> None:
    command = ["kcat", "-P", "-E", "-b", mortal.address, "-t", TOPIC, "-p0"]
    command += ["-Xenable.idempotence=true", "-Xreconnect.backoff.max.ms=200", "-Xlinger.ms=1"]
    kcat = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    stop_asked, written = threading.Event(), [0]

    def write() -> None:
        assert kcat.stdin is not None
        with kcat.stdin:
            while not stop_asked.is_set():
                kcat.stdin.write(b"%d\n" % written[0])
                kcat.stdin.flush()
                written[0] += 1
                stop_asked.wait(0.0005)  # kcat gives up when its queue is full

    writing = threading.Thread(target=write)
    writing.start()
    try:
        kill_under_load(mortal, ending)
    finally:
        stop_asked.set()
        writing.join()
        assert kcat.wait(PATIENCE_S) == 0
    count = written[0]
    assert [one.value for one in read_all(mortal, count)] == [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_consumer_reads_on_after_a_restart(
    name: str, ending: signal.Signals, mortal: ServedBroker
) -> None:
    with LIBRARIES[name](mortal.address).consumer(TOPIC, {0: BEGINNING}) as consumer:
        with connected(mortal.address) as raw:
            produce(raw, TOPIC, batch(b"before"))
        assert [one.value for one in consumer.take(1)] == [b"before"]
        mortal.end(ending)
        mortal.start()
        with connected(mortal.address) as raw:
            produce(raw, TOPIC, batch(b"after"))
        assert [(one.offset, one.value) for one in consumer.take(1)] == [(1, b"after")]


def idempotent(raw: RawConnection, sequence: int, *, producer: int = 77) -> tuple[int, int]:
    records = batch(
        producer_id=ProducerId(producer),
        producer_epoch=ProducerEpoch(0),
        base_sequence=Sequence(sequence),
    )
    told = produce(raw, TOPIC, records)
    return told.error_code, told.base_offset


@pytest.mark.parametrize("ending", ENDINGS)
def test_sequences_are_remembered_through_a_restart(
    ending: signal.Signals, mortal: ServedBroker
) -> None:
    with connected(mortal.address) as raw:
        assert [idempotent(raw, n) for n in range(7)] == [(0, n) for n in range(7)]
        epoch = list_offset(raw, TOPIC, LATEST).leader_epoch
    mortal.end(ending)
    mortal.start()
    with connected(mortal.address) as raw:
        assert [idempotent(raw, n) for n in range(2, 7)] == [(0, n) for n in range(2, 7)]
        assert idempotent(raw, 9)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert idempotent(raw, 7) == (0, 7)
        assert list_offset(raw, TOPIC, LATEST).leader_epoch >= epoch


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_acknowledged_is_there_after_the_broker_was_killed(
    ending: signal.Signals, mortal: ServedBroker
) -> None:
    # A killed process leaves its page cache to the system: both kinds of topics keep everything.
    kinds = [(durability, acks) for durability in ("fsync", "replicated") for acks in (1, -1)]
    names = [f"kept-{durability}-{acks}" for durability, acks in kinds]
    with connected(mortal.address) as raw:
        for name, (durability, acks) in zip(names, kinds, strict=True):
            create_topic(raw, name, partitions=3, durability=durability)
            for number in range(30):
                told = produce(raw, name, batch(b"%d" % number), partition=number % 3, acks=acks)
                assert told.error_code == 0
        known = {name: topic_id(raw, name) for name in names}
    mortal.end(ending)
    mortal.start()
    with connected(mortal.address) as raw:
        for name in names:
            assert topic_id(raw, name) == known[name]
            ends = [list_offset(raw, name, LATEST, partition=p).offset for p in range(3)]
            assert ends == [10] * 3


def test_who_knows_an_older_leader_epoch_is_told(mortal: ServedBroker) -> None:
    with connected(mortal.address) as raw:
        produce(raw, TOPIC, batch())
        old = list_offset(raw, TOPIC, LATEST).leader_epoch
    mortal.end(signal.SIGTERM)
    mortal.start()
    with connected(mortal.address) as raw:
        new = list_offset(raw, TOPIC, LATEST).leader_epoch
        assert new > old
        fenced = ErrorCode.FENCED_LEADER_EPOCH
        assert fetch(raw, TOPIC, current_leader_epoch=old).error_code == fenced
        assert list_offset(raw, TOPIC, LATEST, leader_epoch=old).error_code == fenced
        assert fetch(raw, TOPIC, current_leader_epoch=new).error_code == ErrorCode.NONE


def test_producer_ids_are_not_given_again_after_a_restart(mortal: ServedBroker) -> None:
    fresh = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with connected(mortal.address) as raw:
        before = raw.ask(fresh, 4).producer_id
    mortal.end(signal.SIGKILL)
    mortal.start()
    with connected(mortal.address) as raw:
        assert raw.ask(fresh, 4).producer_id > before


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_whoever_asks_while_the_broker_starts_is_told_of_it(
    ending: signal.Signals, mortal: ServedBroker
) -> None:
    """Whoever is told of no broker at all has nobody to ask again."""
    mortal.end(ending)
    starting = threading.Thread(target=mortal.start)
    starting.start()
    try:
        answer = first_answer(mortal.address)
    finally:
        starting.join()
    host, port = mortal.address.split(":")
    assert [(one.host, one.port) for one in answer.brokers] == [(host, int(port))]
    assert answer.controller_id == 0


def first_answer(address: str) -> MetadataResponse:
    """What the broker says to whoever comes first."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with suppress(ConnectionError), connected(address) as raw:
            answer: MetadataResponse = raw.ask(MetadataRequest(topics=None), 12)
            return answer
    raise AssertionError("nobody answers")
