"""Records that wait, with every client: headers in, copies out, nothing early, lost or doubled."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import confluent_kafka
import pytest

from compat.adapter import (
    BEGINNING,
    CODECS,
    PATIENCE_S,
    Client,
    Library,
    MakeTopic,
    Received,
    Refused,
    Sent,
    wait_until,
)
from compat.clients import LIBRARIES
from compat.confluent_client import ConfluentClient
from compat.raw import RawConnection
from compat.served import ServedBroker
from compat.share_wire import RawMember, partitions, set_group, values
from compat.test_group_requests import find
from compat.wire import produce
from fakes.waiting_log import record
from ottla.broker import lens_reads
from ottla.errors import ErrorCode
from ottla.records.batch import build_batch
from ottla.testing import broker as broker_inside

KILLS = int(os.environ.get("OTTLA_DELAY_KILLS", "2"))
DELAYED = int(os.environ.get("OTTLA_DELAY_RECORDS", "400"))
TRANSACTIONS = int(os.environ.get("OTTLA_DELAY_TRANSACTIONS", "40"))
PENDING = int(os.environ.get("OTTLA_DELAY_PENDING", "10000"))
FAR_MS = 86_400_000
OLD_MS = 3_600_000  # what has been kept for so long goes
EARLY_MS = 2  # the clock of a test and that of the broker are the same one


def delayed(value: bytes, **headers: object) -> Sent:
    """A record with headers of ours: `delay_ms=5` is `ottla.delay-ms: 5`."""
    names = {f"ottla.{name.replace('_', '-')}": content for name, content in headers.items()}
    return Sent(value=value, headers=tuple((n, str(c).encode()) for n, c in names.items()))


def ticket_of(copy: Received) -> int:
    return int(dict(copy.headers)["ottla.ticket"] or b"")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic(delay_enable=True)


@pytest.mark.parametrize("codec", CODECS)
def test_every_library_delays_and_reads_what_was_delayed(
    library: Library, topic: str, codec: str
) -> None:
    """Mixed batches of an idempotent producer; an ordinary record behind tells that all came."""
    sent = [
        Sent(value=b"first"),
        delayed(b"late", delay_ms=700),
        delayed(b"soon", delay_ms=300),
        delayed(b"at once", deliver_at=5),
        delayed(b"far", delay_ms=FAR_MS),
    ]
    begun_ms = now_ms()
    with library.producer(codec=codec, idempotent=True) as producer:
        assert producer.send(topic, sent) == [0, 1, 2, 3, 4]
        with library.consumer(topic, {0: BEGINNING}) as consumer:
            found = consumer.take(4)
        assert [one.value for one in found] == [b"first", b"at once", b"soon", b"late"]
        assert [one.offset for one in found] == [0, 3, 5, 6]
        assert [ticket_of(one) for one in found[2:]] == [2, 1]
        for one, delay_ms in zip(found[2:], (300, 700), strict=True):
            assert begun_ms + delay_ms <= one.timestamp_ms + EARLY_MS
        producer.send(topic, [delayed(b"", cancel=4)])
        with pytest.raises(Refused) as refused:
            producer.send(topic, [delayed(b"", cancel=4)])
        is_known = library.name != "aiokafka"  # which has no name for the code
        assert refused.value.code is (
            ErrorCode.INVALID_RECORD if is_known else ErrorCode.UNKNOWN_SERVER_ERROR
        )


def test_a_search_by_time_finds_shown_records_only(library: Library, make_topic: MakeTopic) -> None:
    topic = make_topic(delay_enable=True, retention_ms=-1)
    with library.producer() as producer:
        hidden = Sent(value=b"", timestamp_ms=5000, headers=(("ottla.delay-ms", b"%d" % FAR_MS),))
        producer.send(topic, [hidden])
        producer.send(topic, [hidden, Sent(value=b"shown", timestamp_ms=2000), hidden])
    assert library.offset_for_time(topic, 0, 1000) == 2
    assert library.offset_for_time(topic, 0, 3000) is None


@pytest.mark.parametrize("read_committed", [False, True])
@pytest.mark.parametrize("name", LIBRARIES)
def test_many_responses_without_a_record_that_is_shown_are_no_error(
    name: str, read_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response looks at little here, so that a reader needs more than fifty of them."""
    monkeypatch.setattr(lens_reads, "SCAN_BYTES", 1000)
    with broker_inside() as address:
        client = LIBRARIES[name](address)
        client.admin().create_topic("hidden", 1, {"delay.enable": "true"})
        writer = ConfluentClient(address)
        with writer.producer() as producer:
            producer.send("hidden", [Sent(value=b"first")])
            for _ in range(130):
                producer.send("hidden", [delayed(bytes(900), delay_ms=FAR_MS)])
            [last] = producer.send("hidden", [Sent(value=b"last")])
        with client.consumer("hidden", {0: BEGINNING}, read_committed=read_committed) as consumer:
            assert [one.value for one in consumer.take(2)] == [b"first", b"last"]
    assert last == 131


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_reader_at_the_end_stays_quiet_while_hidden_records_come(
    name: str, broker: ServedBroker, topic: str
) -> None:
    client = LIBRARIES[name](broker.address)
    writer = ConfluentClient(broker.address)
    with (
        writer.producer() as producer,
        client.consumer(topic, {0: BEGINNING}, wait_ms=10) as consumer,
    ):
        producer.send(topic, [Sent(value=b"first")])
        assert [one.value for one in consumer.take(1)] == [b"first"]
        for _ in range(60):
            producer.send(topic, [delayed(b"", delay_ms=FAR_MS)])
        producer.send(topic, [delayed(b"due", delay_ms=200)])
        assert [one.value for one in consumer.take(1)] == [b"due"]


def test_delay_headers_do_nothing_on_other_topics(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    if not client.can_send(delayed(b"now", delay_ms=FAR_MS)):
        pytest.skip("kcat sends no headers here")
    client.produce(topic, delayed(b"now", delay_ms=FAR_MS))
    with client.consumer(topic, {0: BEGINNING}) as consumer:
        assert [one.value for one in consumer.take(1)] == [b"now"]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_share_groups_get_what_is_shown_and_pass_over_the_rest(
    raw: RawConnection, make_topic: MakeTopic, ordering: str
) -> None:
    topic = make_topic(delay_enable=True, retention_ms=-1)
    find(raw, topic)
    set_group(raw, topic, share_auto_offset_reset="earliest", share_ordering=ordering)
    member = RawMember(raw, topic, "m", topic)
    member.join()
    hidden, shown = record(b"no", b"k", delay_ms=FAR_MS), record(b"shown", b"l")
    due = record(b"due", b"m", delay_ms=300)
    for sent in ([hidden] * 3, [hidden, shown, hidden, due], [shown], [hidden]):
        produce(raw, topic, bytes(build_batch(sent)))
    found: list[tuple[int, int, int]] = []
    while len(found) < 3:
        answer = member.fetch(max_wait_ms=PATIENCE_S * 1000)
        [partition] = partitions(answer)
        for one in partition.acquired_records:
            found.append((one.first_offset, one.last_offset, one.delivery_count))
            assert member.acknowledge((one.first_offset, one.last_offset, [1])) == 0
        assert set(values(answer)) <= {b"shown", b"due"}
    assert found == [(4, 4, 1), (7, 7, 1), (9, 9, 1)]


def test_settings_that_do_not_go_together_are_refused(
    broker: ServedBroker, make_topic: MakeTopic
) -> None:
    client = ConfluentClient(broker.address)
    admin = client.admin()
    with pytest.raises(Refused) as refused:
        admin.create_topic("both", 1, {"delay.enable": "true", "cleanup.policy": "compact,delete"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    topic = make_topic(delay_enable=True)
    admin.change_config(topic, {"delay.enable": "false"})
    with pytest.raises(Refused) as refused:
        admin.change_config(topic, {"cleanup.policy": "compact"})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    with client.producer() as producer, pytest.raises(Refused) as refused:
        producer.send(topic, [delayed(b"", delay_ms=5)])
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_records_wait_through_retention_and_deletion(
    library: Library, make_topic: MakeTopic
) -> None:
    """The log loses everything that is old, again and again, and nothing that waits.

    What is sent is old already. What is shown has the time at which it was shown, and stays.
    """
    topic = make_topic(delay_enable=True, retention_ms=OLD_MS, segment_bytes=2000)
    client, admin = library, library.admin()
    sent_ms = now_ms() - 2 * OLD_MS

    def old(sent: Sent) -> Sent:
        return replace(sent, timestamp_ms=sent_ms)

    with client.producer() as producer:
        waits = [old(delayed(b"%d" % number, delay_ms=3000 + number)) for number in range(20)]
        producer.send(topic, waits)
        for _ in range(10):
            rest = [Sent(value=bytes(500)), delayed(b"far", delay_ms=FAR_MS)]
            producer.send(topic, [old(one) for one in rest])
        low = admin.delete_records(topic, 0, 15)
        assert low >= 15
        with client.consumer(topic, {0: low}, reset="earliest") as consumer:
            found: list[Received] = []
            while len([one for one in found if one.headers]) < 20:
                found += consumer.take(1)
        copies = [one for one in found if one.headers]
        assert [one.value for one in copies] == [b"%d" % number for number in range(20)]
        assert [ticket_of(one) for one in copies] == list(range(20))
        wait_until(lambda: admin.delete_records(topic, 0, 20) > 20, "retention goes on")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker that a test may kill."""
    served = ServedBroker(tmp_path / "data", {})
    served.start()
    yield served
    served.stop()


_names = count(1)


@pytest.mark.slow
def test_none_is_lost_doubled_or_early_over_kills(mortal: ServedBroker) -> None:
    """Every acknowledged record comes once, after its time, whenever the broker dies."""
    rng = Random(5)
    client = ConfluentClient(mortal.address)
    client.admin().create_topic("q", 1, {"delay.enable": "true"})
    due: dict[bytes, int] = {}
    with client.producer(idempotent=True) as producer:
        for round_number in range(KILLS + 1):
            some = [
                (b"%d" % (round_number * DELAYED + number), rng.randrange(1, 3000))
                for number in range(DELAYED // (KILLS + 1))
            ]
            for value, delay_ms in some:
                due[value] = now_ms() + delay_ms
            producer.send("q", [delayed(value, deliver_at=due[value]) for value, _ in some])
            if round_number < KILLS:
                mortal.end(signal.SIGKILL)
                mortal.start()
    with client.consumer("q", {0: BEGINNING}, read_committed=True) as consumer:
        found = consumer.take(len(due))
    values = [one.value for one in found]
    assert sorted(values, key=lambda one: int(one or b"")) == sorted(due, key=int)
    copies = [one for one in found if one.headers]  # others were due before they arrived
    assert len(copies) > len(found) // 4
    for one in copies:
        assert one.timestamp_ms + EARLY_MS >= due[one.value or b""]


def test_very_many_may_wait(mortal: ServedBroker) -> None:
    """They take little memory, and a broker that was killed soon knows all of them again."""
    client = ConfluentClient(mortal.address)
    client.admin().create_topic("q", 1, {"delay.enable": "true"})
    before_bytes = mortal.metric("process_resident_memory_bytes")
    with client.producer() as producer:
        for first in range(0, PENDING, 10_000):
            due_ms = now_ms() + FAR_MS + first
            producer.send(
                "q", [delayed(bytes(50), deliver_at=due_ms + number) for number in range(10_000)]
            )
    assert mortal.metric("ottla_waiting_records") == PENDING
    taken_bytes = mortal.metric("process_resident_memory_bytes") - before_bytes
    mortal.end(signal.SIGKILL)
    begun_s = time.monotonic()
    mortal.start()
    wait_until(
        lambda: mortal.metric("ottla_waiting_partitions_loading") == 0, "the log has been read"
    )
    assert mortal.metric("ottla_waiting_records") == PENDING
    if PENDING >= 1_000_000:
        assert taken_bytes <= 64 << 20
        assert time.monotonic() - begun_s <= 5


@pytest.mark.slow
def test_only_committed_transactions_appear(broker: ServedBroker, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": f"delays-{next(_names)}"}
    )
    producer.init_transactions(PATIENCE_S)
    committed = []
    for number in range(TRANSACTIONS):
        value = b"%d" % number
        producer.begin_transaction()
        producer.produce(topic, b"shown-" + value)
        producer.produce(topic, value, headers={"ottla.delay-ms": b"%d" % (number % 7 * 20)})
        if number % 5 == 4:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed.append(value)
    for name in LIBRARIES:
        client = LIBRARIES[name](broker.address)
        with client.consumer(topic, {0: BEGINNING}, read_committed=True) as consumer:
            found = [one.value or b"" for one in consumer.take(2 * len(committed))]
        shown = [one.removeprefix(b"shown-") for one in found if one.startswith(b"shown-")]
        assert shown == committed
        assert sorted(int(one) for one in found if not one.startswith(b"shown-")) == sorted(
            map(int, committed)
        )
