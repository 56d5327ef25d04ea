"""Share groups with the only share consumer that Python has, confluent-kafka's."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from compat.adapter import PATIENCE_S, wait_until
from compat.raw import connected
from compat.served import ServedBroker
from compat.share_wire import set_group
from compat.test_share_requests import offsets_of
from compat.wire import create_topic
from fakes.consumed import value_of

_PROGRAM = Path(__file__).with_name("share_process.py")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("sharers") / "data",
        {
            "offsets.topic.num.partitions": "3",
            "share.coordinator.state.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "1",
        },
    )
    served.start()
    yield served
    served.stop()


@pytest.fixture
def topic(broker: ServedBroker, new_name: Callable[[], str]) -> str:
    """A topic of three partitions, and a group of the same name that reads all of it."""
    name = new_name()
    with connected(broker.address) as raw:
        create_topic(raw, name, 3)
        set_group(raw, name, share_auto_offset_reset="earliest")
    return name


def produce(broker: ServedBroker, topic: str, total: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    for number in range(total):
        producer.produce(topic, value=str(number).encode())
        if number % 10 == 0:
            producer.flush()  # so that there are many batches
    assert producer.flush(PATIENCE_S) == 0


def consumer(broker: ServedBroker, topic: str, **settings: str) -> ShareConsumer:
    made = ShareConsumer(
        {"bootstrap.servers": broker.address, "group.id": topic, "max.poll.records": 20} | settings
    )
    made.subscribe([topic])
    return made


class Process:
    """A consumer in a process of its own; its lines so far."""

    def __init__(self, broker: ServedBroker, topic: str, *more: str) -> None:
        self.got: list[int] = []
        self.done: list[int] = []
        self.times: list[tuple[str, int, float]] = []
        self._errors: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), broker.address, topic, topic, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._drain)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, value, at_s = line.split()
            (self.got if kind == "got" else self.done).append(int(value))
            self.times.append((kind, int(value), float(at_s)))

    def _drain(self) -> None:
        assert self.process.stderr is not None
        self._errors += self.process.stderr

    def end(self, signum: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signum)
        status = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        assert status == (0 if signum is signal.SIGTERM else -signum), self._errors


def test_two_consumers_share_the_records_of_a_topic(broker: ServedBroker, topic: str) -> None:
    total = 300
    members = [consumer(broker, topic) for _ in range(2)]
    seen: list[Counter[int]] = [Counter(), Counter()]
    produce(broker, topic, total)

    def has_all() -> bool:
        for member, got in zip(members, seen, strict=True):
            got.update(int(value_of(message)) for message in member.poll(0.2))
        return (seen[0] + seen[1]).total() >= total

    wait_until(has_all, "all records are delivered")
    for member in members:
        member.commit_sync(30.0)
        member.close()
    assert seen[0] + seen[1] == Counter(range(total))
    with connected(broker.address) as raw:
        assert all(lag == 0 for _, lag in offsets_of(raw, topic))


def test_released_and_rejected_records(broker: ServedBroker, topic: str) -> None:
    """Everything is released at first; then even numbers are accepted and odd ones rejected."""
    produce(broker, topic, 20)
    tries = Counter[int]()
    with consumer(broker, topic, **{"share.acknowledgement.mode": "explicit"}) as member:

        def has_all() -> bool:
            for message in member.poll(0.5):
                assert message.error() is None, message.error()
                number = int(value_of(message))
                tries[number] += 1
                kind = AcknowledgeType.RELEASE
                if tries[number] > 1:
                    kind = AcknowledgeType.REJECT if number % 2 else AcknowledgeType.ACCEPT
                member.acknowledge(message, kind)
            assert not any(member.commit_sync(30.0).values())
            return tries.total() >= 40

        wait_until(has_all, "all records came twice")
    assert tries == dict.fromkeys(range(20), 2)
    with connected(broker.address) as raw:
        assert all(lag == 0 for _, lag in offsets_of(raw, topic))


def test_aborted_transactions_are_not_delivered_to_a_group_that_reads_committed_records(
    broker: ServedBroker, topic: str
) -> None:
    with connected(broker.address) as raw:
        set_group(raw, topic, share_isolation_level="read_committed")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for number in range(10):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, value=str(number).encode(), partition=partition)
        assert producer.flush(PATIENCE_S) == 0  # else what is to be aborted is never sent
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    seen = Counter[int]()
    with consumer(broker, topic) as member:

        def has_all() -> bool:
            seen.update(int(value_of(message)) for message in member.poll(0.5))
            return seen.total() >= 15

        wait_until(has_all, "what was committed is delivered")
        member.commit_sync(30.0)
    assert seen == dict.fromkeys(range(0, 10, 2), 3)
    with connected(broker.address) as raw:
        assert [lag for _, lag in offsets_of(raw, topic)] == [0, 0, 0]  # markers are no records


def test_a_killed_consumer_loses_nothing_and_others_repeat_only_what_it_had_begun(
    broker: ServedBroker, topic: str
) -> None:
    """It is soon over: each partition has two members, so none waits until the dead is missed."""
    killed = Process(broker, topic)
    lasting = [Process(broker, topic) for _ in range(2)]
    everyone = [killed, *lasting]
    numbers = count()
    producer = Producer({"bootstrap.servers": broker.address})

    def put(size: int) -> None:
        for number in islice(numbers, size):
            producer.produce(topic, value=b"%d" % number)
        assert producer.flush(PATIENCE_S) == 0

    def all_work() -> bool:
        put(20)
        return all(process.done for process in everyone)

    try:
        wait_until(all_work, "all consumers have done something")
        put(300)
        killed.end(signal.SIGKILL)
        put(300)
        sent = range(next(numbers))
        wait_until(lambda: _is_done(broker, topic), "every record is finished")
    finally:
        for process in everyone:
            is_over = process.process.poll() is not None
            process.end(signal.SIGKILL if is_over or process is killed else signal.SIGTERM)
    assert all(sorted(process.got) == sorted(process.done) for process in lasting)
    got = Counter(number for process in everyone for number in process.got)
    assert got.keys() == set(sent)
    again = got - Counter(sent)
    assert not again - Counter(killed.got), "only what the killed one had got may come again"


def _is_done(broker: ServedBroker, topic: str) -> bool:
    with connected(broker.address) as raw:
        return [lag for _, lag in offsets_of(raw, topic)] == [0, 0, 0]
