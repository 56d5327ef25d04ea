"""Durable leases and expiry of share groups, on the wire."""

import signal
import time
from collections.abc import Iterator
from itertools import count

import pytest

from compat.adapter import wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.share_wire import RawMember, set_group, values
from compat.test_group_requests import find
from compat.test_share_requests import offsets_of, put
from compat.test_work_queues import dead_letters, headers_of, joined
from compat.wire import create_topic, produce
from ottla.clock import SystemClock
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.records.batch import Record, build_batch
from ottla.records.compression import Codec

ACCEPT, RELEASE, REJECT = 1, 2, 3
LONG_MS = 60_000
LOCK_MS = 15_000
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("leases") / "data",
        {
            "offsets.topic.num.partitions": "1",
            "share.coordinator.state.topic.num.partitions": "2",
        },
    )
    served.start()
    with connected(served.address) as raw:
        find(raw, "any")
    yield served
    served.stop()


@pytest.fixture
def topic(raw: RawConnection) -> str:
    """A topic, and a group of the same name with durable leases."""
    name = f"leases-{next(_numbers)}"
    create_topic(raw, name)
    set_group(
        raw,
        name,
        share_auto_offset_reset="earliest",
        share_lease_durable="true",
        share_record_lock_duration_ms=str(LOCK_MS),
    )
    return name


def again(raw: RawConnection, topic: str, member_id: str = "m") -> RawMember:
    """The member with a new session, which fetches nothing."""
    member = RawMember(raw, topic, member_id, topic)
    assert member.take(max_wait_ms=0, max_records=0) == []
    return member


@pytest.mark.slow
def test_a_lease_outlives_its_connection_until_its_lock_ends(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    with connected(broker.address) as lost:
        member = joined(lost, topic)
        put(lost, topic, 0, 1)
        begun_s = time.monotonic()
        assert member.take(max_wait_ms=LONG_MS) == [(0, 1, 1)]
    other = joined(raw, topic, "n")
    assert other.take(max_wait_ms=0) == []
    with connected(broker.address) as back:
        assert again(back, topic).acknowledge((0, 0, [ACCEPT])) == 0
    assert other.take(max_wait_ms=LONG_MS) == [(1, 1, 2)]
    assert time.monotonic() - begun_s >= LOCK_MS / 1000


@pytest.mark.slow
def test_a_lease_outlives_the_broker(broker: ServedBroker, raw: RawConnection, topic: str) -> None:
    """Acknowledged as the first thing after a restart; the others do not get it meanwhile."""
    member = joined(raw, topic)
    put(raw, topic, 0, 1, 2)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 2, 1)]
    broker.end(signal.SIGKILL)
    broker.start()
    begun_s = time.monotonic()
    with connected(broker.address) as new:
        wait_until(lambda: not RawMember(new, topic, "n", topic).beat().error_code, "it serves")
        mine = again(new, topic)
        assert mine.acknowledge((0, 0, [ACCEPT])) == 0
        other = RawMember(new, topic, "n", topic)
        assert other.take(max_wait_ms=0) == []
        assert other.acknowledge((1, 1, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
        assert mine.acknowledge((1, 1, [ACCEPT])) == 0
        assert other.take(max_wait_ms=LONG_MS) == [(2, 2, 2)], "its delivery was written"
    assert time.monotonic() - begun_s >= LOCK_MS / 1000 - 1


def test_a_member_that_closes_gives_its_leases_back_as_if_not_delivered(
    raw: RawConnection, topic: str
) -> None:
    member = joined(raw, topic)
    put(raw, topic, 0)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 0, 1)]
    assert member.acknowledge(epoch=-1) == 0
    assert joined(raw, topic, "n").take(max_wait_ms=LONG_MS) == [(0, 0, 1)]


def test_a_lease_is_kept_through_many_updates_and_restarts(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    """Also in snapshots of the state, which replace updates."""
    member = joined(raw, topic)
    put(raw, topic, 0)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 0, 1)]
    for number in range(1, 260):  # two updates each: more than 500 make a snapshot
        put(raw, topic, number)
        assert member.take(max_wait_ms=LONG_MS) == [(number, number, 1)]
        assert member.acknowledge((number, number, [ACCEPT])) == 0
    broker.end(signal.SIGTERM)
    broker.start()
    with connected(broker.address) as new:
        wait_until(lambda: not RawMember(new, topic, "n", topic).beat().error_code, "it serves")
        assert again(new, topic).acknowledge((0, 0, [ACCEPT])) == 0
        assert offsets_of(new, topic) == [(260, 0)]


# Expiry


def put_ttl(
    raw: RawConnection, topic: str, *ttls: int | None, age_ms: int = 0, codec: Codec = Codec.NONE
) -> None:
    now_ms = SystemClock().now_ms() - age_ms
    records = [
        Record(
            timestamp_ms=TimestampMs(now_ms),
            key=b"k",
            value=b"%d" % number,
            headers=() if ttl is None else (("ottla.ttl-ms", b"%d" % ttl),),
        )
        for number, ttl in enumerate(ttls)
    ]
    assert not produce(raw, topic, bytes(build_batch(records, codec=codec))).error_code


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_expired_records_are_not_delivered(raw: RawConnection, topic: str, codec: Codec) -> None:
    member = joined(raw, topic)
    put_ttl(raw, topic, None, 1000, 3_600_000, 1000, 999, age_ms=60_000, codec=codec)
    answer = member.fetch(max_wait_ms=LONG_MS)
    assert values(answer) == [b"0", b"2"]
    assert member.acknowledge((0, 0, [ACCEPT]), (2, 2, [ACCEPT])) == 0
    assert offsets_of(raw, topic) == [(5, 0)]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_record_that_expires_between_two_deliveries_is_dead(
    broker: ServedBroker, raw: RawConnection, topic: str, ordering: str
) -> None:
    name = f"dlq.{topic}"
    create_topic(raw, name, 2, errors_deadletterqueue_group_enable="true")
    set_group(raw, topic, errors_deadletterqueue_topic_name=name, share_ordering=ordering)
    member = joined(raw, topic)
    put_ttl(raw, topic, 3000)
    begun_s = time.monotonic()
    assert member.take(max_wait_ms=LONG_MS) == [(0, 0, 1)]
    wait_until(lambda: time.monotonic() - begun_s > 3.1, "it has expired")
    assert member.acknowledge((0, 0, [RELEASE])) == 0
    put_ttl(raw, topic, None)
    assert member.take(max_wait_ms=LONG_MS) == [(1, 1, 1)]
    (found,) = dead_letters(broker, name, 1)
    headers = headers_of(found)
    assert headers["ottla.dlq.cause"] == b"expired"
    assert headers["__dlq.errors.delivery.count"] == b"1"
    assert "ottla.ttl-ms" not in headers, "the dead letter does not expire"
    assert found.value() == b"0"
