"""`kill -9` in the middle of every kind of attack: the broker starts again with all it promised."""

import itertools
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from fakes import build
from hostile.attacked_broker import (
    PATIENCE_S,
    AttackedBroker,
    attacked_broker,
    doomed_broker,
    wait_until,
)
from hostile.mutants import Mutants, recorded_frames
from hostile.onslaught import send_all
from hostile.test_batches import BOMBS, LIES, bomb_batch, search
from hostile.test_names import NAMES
from hostile.wire import (
    create_topic,
    fetch_request,
    framed,
    produce_request,
    raw_client,
    request_bytes,
    served_layouts,
)
from ottla.model import TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

DIARY: Final = TopicPartition("diary", 0)
VICTIM: Final = TopicPartition("victim", 0)
ENDLESS: Final = 10**9
PAGES: Final = 30  # acknowledged before the kill


def send_mutants(broker: AttackedBroker) -> None:
    mutants = Mutants(25, served_layouts(broker), recorded_frames())
    send_all(broker, mutants.next, ENDLESS)


def send_bombs(broker: AttackedBroker) -> None:
    bombs = [bomb_batch(codec, make_payload()) for codec, make_payload in BOMBS.values()]
    with raw_client(broker) as client:
        for bomb in itertools.cycle(bombs):
            client.ask(produce_request(VICTIM, bomb), 8)
            search(client, VICTIM, build.NOW_MS)


def send_lies(broker: AttackedBroker) -> None:
    with raw_client(broker) as client:
        for make, _ in itertools.cycle(LIES.values()):
            client.ask(produce_request(VICTIM, make()), 8)


def ask_without_listening(broker: AttackedBroker) -> None:
    ask = framed(struct.pack(">hhihi", ApiKey.METADATA, 0, 1, -1, 0)) * 1000
    while True:
        with raw_client(broker) as client:
            client.socket.settimeout(0.2)
            with suppress(TimeoutError):
                while True:
                    client.socket.sendall(ask)


def trickle(broker: AttackedBroker) -> None:
    with ExitStack() as stack:
        halves = [stack.enter_context(broker.connect()) for _ in range(200)]
        for byte in itertools.cycle(struct.pack(">i", 10_000) + bytes(9000)):
            for one in halves:
                one.sendall(bytes([byte]))


def lie_about_lengths(broker: AttackedBroker) -> None:
    for size in itertools.cycle((-1, 2**31 - 1, 0, 3)):
        with raw_client(broker) as client:
            client.socket.sendall(struct.pack(">i", size))
            assert client.is_closed_by_broker


def fetch_everything(broker: AttackedBroker) -> None:
    partitions = [FetchPartition(partition=n, partition_max_bytes=1) for n in range(100_000)]
    topic = FetchTopic(topic_id=Uuid(bytes(15) + b"x"), partitions=partitions)
    large = request_bytes(FetchRequest(max_wait_ms=2**31 - 1, topics=[topic]), 13)
    while True:
        with raw_client(broker) as client:
            client.socket.sendall(large)
            assert client.read_answer() is not None


def come_and_go(broker: AttackedBroker) -> None:
    wait = request_bytes(fetch_request(VICTIM, 0, max_wait_ms=2**31 - 1, min_bytes=2**31 - 1), 11)
    while True:
        with broker.connect() as one:
            one.sendall(wait)


def create_strange_topics(broker: AttackedBroker) -> None:
    with raw_client(broker) as client:
        for number, name in zip(itertools.count(), itertools.cycle(NAMES.values())):
            for wanted in (name, f"fine-{number % 50}"):
                topic = CreatableTopic(name=wanted, num_partitions=1, replication_factor=1)
                client.ask(CreateTopicsRequest(topics=[topic]), 7)


ATTACKS: Final[dict[str, Callable[[AttackedBroker], None]]] = {
    one.__name__: one
    for one in (
        send_mutants,
        send_bombs,
        send_lies,
        ask_without_listening,
        trickle,
        lie_about_lengths,
        fetch_everything,
        come_and_go,
        create_strange_topics,
    )
}


class Diary:
    """Writes a numbered page after the other; which ones were acknowledged is remembered."""

    def __init__(self, broker: AttackedBroker) -> None:
        self.acknowledged = 0
        self._broker = broker
        self._thread = threading.Thread(target=self._write, name="diary")

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _write(self) -> None:
        with suppress(OSError, AssertionError), raw_client(self._broker) as client:
            for number in range(ENDLESS):
                batch = bytes(build.batch(value=page(number)))
                answer = client.ask(produce_request(DIARY, batch), 8)
                (partition,) = answer.responses[0].partition_responses
                assert (partition.error_code, partition.base_offset) == (0, number)
                self.acknowledged = number + 1


def page(number: int) -> bytes:
    return b"page %08d." % number


def pages_of(broker: AttackedBroker) -> int:
    """How many pages there are; they must be the first ones, in their order."""
    count = 0
    with raw_client(broker) as client:
        while True:
            answer = client.ask(fetch_request(DIARY, count), 11)
            (partition,) = answer.responses[0].partitions
            assert partition.error_code == 0
            records = bytes(partition.records or b"")
            if not records:
                return count
            while page(count) in records:
                count += 1


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_kill_during_an_attack_costs_nothing_that_was_acknowledged(
    tmp_path: Path, attack: str
) -> None:
    with doomed_broker(tmp_path) as broker:
        create_topic(broker, DIARY.topic)
        create_topic(broker, VICTIM.topic)
        diary = Diary(broker)
        attacker = threading.Thread(target=_until_the_end, args=(ATTACKS[attack], broker))
        attacker.start()
        diary.start()
        wait_until(lambda: diary.acknowledged >= PAGES)
        broker.kill()
        diary.join()
        attacker.join(PATIENCE_S)
        assert not attacker.is_alive()
    with attacked_broker(tmp_path) as broker:
        assert pages_of(broker) >= diary.acknowledged >= PAGES
        create_topic(broker, "after")
    verify = [sys.executable, "-m", "ottla", "log", "verify", str(tmp_path / "data")]
    assert subprocess.run(verify, check=False, timeout=PATIENCE_S).returncode == 0


def _until_the_end(attack: Callable[[AttackedBroker], None], broker: AttackedBroker) -> None:
    with suppress(OSError, AssertionError):
        attack(broker)
