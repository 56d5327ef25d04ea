"""Transactions of real clients: all or nothing, for who reads what is committed."""

import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from compat.adapter import Client, MakeTopic, wait_until
from compat.confluent_client import ConfluentClient
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.transactional import TRANSACTIONAL, Failed, Fenced, Transactional, transactional
from compat.wire import create_topic, fetch, list_offset
from ottla.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
)

LATEST: Final = -1
SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "20",
}

# kafka-python opens sockets to a broker that is away, and leaves them.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(tmp_path_factory.mktemp("transactions") / "data", SETTINGS)
    served.start()
    yield served
    served.stop()


@pytest.fixture(params=TRANSACTIONAL)
def writer(request: pytest.FixtureRequest) -> str:
    """Every library in turn."""
    return str(request.param)


@pytest.fixture
def new_id() -> Callable[[], str]:
    return lambda: f"writer-{next(_numbers)}"


def committed(client: Client, topic: str, amount: int) -> list[bytes | None]:
    """The first records that who reads only what is committed gets."""
    return [one.value for one in client.consume(topic, amount, read_committed=True)]


def stable_end(raw: RawConnection, topic: str) -> int:
    return list_offset(raw, topic, LATEST, isolation_level=1).offset


def end(raw: RawConnection, topic: str) -> int:
    return list_offset(raw, topic, LATEST).offset


def offset_of(raw: RawConnection, group: str, topic: str, *, require_stable: bool = True) -> Any:
    """What a group is told about partition 0: its offset and an error."""
    wanted = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    request = OffsetFetchRequest(groups=[wanted], require_stable=require_stable)
    (found,) = raw.ask(request, 9).groups[0].topics[0].partitions
    return found.committed_offset, found.error_code


def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    writer: str, client: Client, make_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    topic = make_topic()
    with transactional(writer, client.address, new_id()) as producer:
        for number in range(6):
            producer.begin()
            producer.send(topic, b"%d" % number, b"%d again" % number)
            if number % 3 == 1:
                producer.abort()
            else:
                producer.commit()
    kept = [b"0", b"2", b"3", b"5"]
    assert committed(client, topic, 8) == [
        value for one in kept for value in (one, one + b" again")
    ]
    everything = [one.value for one in client.consume(topic, 12)]
    assert len(everything) == len(set(everything)) == 12, "who does not care reads all of it"


def test_nobody_reads_an_open_transaction_before_it_is_committed(
    writer: str,
    confluent: ConfluentClient,
    make_topic: MakeTopic,
    raw: RawConnection,
    new_id: Callable[[], str],
) -> None:
    topic = make_topic(partitions=2)
    with transactional(writer, confluent.address, new_id()) as producer:
        producer.begin()
        producer.send(topic, b"a", b"b")
        producer.send(topic, b"c", partition=1)
        assert (stable_end(raw, topic), end(raw, topic)) == (0, 2)
        assert fetch(raw, topic).last_stable_offset == 0
        producer.commit()
    # The answer to EndTxn may be ahead of the markers, so readers may wait a moment.
    wait_until(lambda: stable_end(raw, topic) == 3, "the marker is there")
    assert committed(confluent, topic, 2) == [b"a", b"b"]
    (other,) = confluent.consume(topic, 1, partition=1, read_committed=True)
    assert other.value == b"c"


def test_an_open_transaction_holds_back_what_others_committed_behind_it(
    writer: str,
    confluent: ConfluentClient,
    make_topic: MakeTopic,
    raw: RawConnection,
    new_id: Callable[[], str],
) -> None:
    topic = make_topic()
    with (
        transactional(writer, confluent.address, new_id()) as slow,
        transactional("confluent", confluent.address, new_id()) as quick,
    ):
        quick.begin()
        quick.send(topic, b"first")
        quick.commit()
        slow.begin()
        slow.send(topic, b"slow")
        quick.begin()
        quick.send(topic, b"quick")
        quick.commit()
        wait_until(lambda: end(raw, topic) == 5, "the marker of the quick one is there")
        assert stable_end(raw, topic) == 2, "the first offset of the slow one"
        slow.abort()
        wait_until(lambda: stable_end(raw, topic) == 6, "everything is decided")
        aborted = fetch(raw, topic, version=12).aborted_transactions
        assert aborted in (None, []), "nobody asked for committed records only"
    assert committed(confluent, topic, 2) == [b"first", b"quick"]


def test_offsets_move_with_the_transaction(
    writer: str,
    raw: RawConnection,
    broker: ServedBroker,
    make_topic: MakeTopic,
    new_id: Callable[[], str],
) -> None:
    topic, group = make_topic(), new_id()
    with transactional(writer, broker.address, new_id()) as producer:
        producer.begin()
        producer.send(topic, b"out")
        producer.send_offsets(group, {(topic, 0): 5})
        assert offset_of(raw, group, topic) == (-1, 88), "nobody can say yet"
        assert offset_of(raw, group, topic, require_stable=False) == (-1, 0)
        producer.commit()
        wait_until(lambda: offset_of(raw, group, topic) == (5, 0), "the offset is committed")
        producer.begin()
        producer.send_offsets(group, {(topic, 0): 9})
        assert offset_of(raw, group, topic) == (-1, 88)
        producer.abort()
        wait_until(lambda: offset_of(raw, group, topic) == (5, 0), "the abort left it")


def test_a_zombie_is_fenced_and_its_transaction_aborted_by_the_next_one(
    writer: str, confluent: ConfluentClient, make_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    topic, name = make_topic(), new_id()
    with transactional(writer, confluent.address, name) as zombie:
        zombie.begin()
        zombie.send(topic, b"zombie")
        with transactional(writer, confluent.address, name) as living:
            living.begin()
            living.send(topic, b"living")
            living.commit()
            with pytest.raises(Fenced):
                zombie.commit()
            living.begin()
            living.send(topic, b"more")
            living.commit()
    assert committed(confluent, topic, 2) == [b"living", b"more"]


def test_a_zombie_cannot_write_either(
    writer: str, confluent: ConfluentClient, make_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    topic, name = make_topic(), new_id()
    with (
        transactional(writer, confluent.address, name) as zombie,
        transactional("confluent", confluent.address, name) as living,
    ):
        zombie.begin()
        with pytest.raises((Fenced, Failed)):
            _write_and_commit(zombie, topic)
        living.begin()
        living.send(topic, b"living")
        living.commit()
    assert committed(confluent, topic, 1) == [b"living"]


def _write_and_commit(producer: Transactional, topic: str) -> None:
    """kafka-python tells its user at the commit, others at once."""
    producer.send(topic, b"zombie")
    producer.commit()


def test_a_transaction_whose_time_is_over_is_aborted(
    writer: str,
    confluent: ConfluentClient,
    make_topic: MakeTopic,
    raw: RawConnection,
    new_id: Callable[[], str],
) -> None:
    topic = make_topic()
    with transactional(writer, confluent.address, new_id(), timeout_ms=1000) as producer:
        producer.begin()
        producer.send(topic, b"too late")
        wait_until(lambda: stable_end(raw, topic) == 2, "the coordinator has aborted it")
        with pytest.raises((Fenced, Failed)):
            producer.commit()
    with transactional("confluent", confluent.address, new_id()) as other:
        other.begin()
        other.send(topic, b"in time")
        other.commit()
    assert committed(confluent, topic, 1) == [b"in time"]


def test_an_empty_transaction_is_nothing_special(
    writer: str, confluent: ConfluentClient, make_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    topic = make_topic()
    with transactional(writer, confluent.address, new_id()) as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
        producer.begin()
        producer.send(topic, b"then")
        producer.commit()
    assert committed(confluent, topic, 1) == [b"then"]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker of this test's own, to be ended and started again."""
    served = ServedBroker(tmp_path / "data", SETTINGS)
    served.start()
    yield served
    served.stop()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_transaction_outlives_its_broker(
    writer: str, mortal: ServedBroker, new_id: Callable[[], str], ending: signal.Signals
) -> None:
    group = new_id()
    with connected(mortal.address) as raw:
        create_topic(raw, "t", 1)
    client = ConfluentClient(mortal.address)
    with transactional(writer, mortal.address, new_id()) as producer:
        for value in (b"before", b"across"):
            producer.begin()
            producer.send("t", value, value + b" more")
            producer.send_offsets(group, {("t", 0): len(value)})
            if value == b"across":
                mortal.end(ending)
                mortal.start()
                with connected(mortal.address) as raw:
                    wait_until(lambda: offset_of(raw, group, "t") == (-1, 88), "it is loaded")
                    assert stable_end(raw, "t") == 3
            producer.commit()
    assert committed(client, "t", 4) == [b"before", b"before more", b"across", b"across more"]
    with connected(mortal.address) as raw:
        wait_until(lambda: offset_of(raw, group, "t") == (6, 0), "the offset is committed")


def test_compaction_leaves_open_transactions_alone_and_takes_the_aborted(
    writer: str,
    confluent: ConfluentClient,
    make_topic: MakeTopic,
    raw: RawConnection,
    new_id: Callable[[], str],
) -> None:
    topic = make_topic(
        cleanup_policy="compact",
        segment_bytes=1024,
        min_cleanable_dirty_ratio=0.01,
    )
    keys = [b"key-%04d" % number for number in range(4)]  # the first eight bytes are the key

    def rounds(producer: Transactional, numbers: range) -> None:
        for number in numbers:
            producer.begin()
            producer.send(topic, *(key + b" %d" % number for key in keys))
            if number % 2:
                producer.abort()
            else:
                producer.commit()

    with (
        transactional(writer, confluent.address, new_id()) as busy,
        transactional("confluent", confluent.address, new_id()) as waiting,
    ):
        rounds(busy, range(31))
        waiting.begin()
        waiting.send(topic, keys[0] + b" open")
        opened_at = end(raw, topic) - 1
        rounds(busy, range(31, 62))
        wait_until(lambda: _count(confluent, topic, opened_at) < 20, "old rounds are compacted")
        assert stable_end(raw, topic) == opened_at
        behind = [one.value for one in confluent.consume(topic, 1, start=opened_at)]
        assert behind == [keys[0] + b" open"], "nothing at or behind it was touched"
        waiting.commit()
        rounds(busy, range(62, 63))
    wait_until(lambda: stable_end(raw, topic) == end(raw, topic), "everything is decided")
    last: dict[bytes, bytes] = {}
    for one in _all_committed(confluent, topic, stable_end(raw, topic)):
        last[one[:8]] = one
    assert last == {key: key + b" 62" for key in keys}


def _count(client: ConfluentClient, topic: str, before: int) -> int:
    """How many records lie before an offset."""
    found = 0
    with client.consumer(topic, {0: 0}) as consumer:
        while consumer.take(1)[0].offset < before:
            found += 1
    return found


def _all_committed(client: ConfluentClient, topic: str, stable: int) -> list[bytes]:
    values = []
    with client.consumer(topic, {0: 0}, read_committed=True) as consumer:
        while True:
            (one,) = consumer.take(1)
            assert one.value is not None
            values.append(one.value)
            if one.offset == stable - 2:  # a marker is the last one
                return values


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker that forgets silent producers in no time."""
    settings = {
        **SETTINGS,
        "producer.id.expiration.ms": "50",
        "log.retention.check.interval.ms": "20",
    }
    served = ServedBroker(tmp_path / "data", settings)
    served.start()
    yield served
    served.stop()


def test_a_producer_with_an_open_transaction_is_not_forgotten(
    writer: str, forgetful: ServedBroker, new_id: Callable[[], str]
) -> None:
    with connected(forgetful.address) as raw:
        create_topic(raw, "t", 1)
        create_topic(raw, "u", 1)
        with (
            transactional(writer, forgetful.address, new_id()) as patient,
            transactional("confluent", forgetful.address, new_id()) as other,
        ):
            other.begin()
            other.send("u", b"1")
            other.commit()
            patient.begin()
            patient.send("t", b"1")
            wait_until(lambda: producers_of(raw, "u") == 0, "the silent one is forgotten")
            assert producers_of(raw, "t") == 1
            assert stable_end(raw, "t") == 0
            patient.send("t", b"2")
            patient.commit()
        wait_until(lambda: producers_of(raw, "t") == 0, "now it may be forgotten")
    client = ConfluentClient(forgetful.address)
    assert committed(client, "t", 2) == [b"1", b"2"]


def producers_of(raw: RawConnection, topic: str) -> int:
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequestTopic(name=topic, partition_indexes=[0])]
    )
    (found,) = raw.ask(request, 0).topics[0].partitions
    return len(found.active_producers)
