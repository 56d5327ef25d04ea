"""Share groups as work queues, on the wire: backoff, dead letters, key order."""

import signal
import time
from collections.abc import Iterator
from itertools import count

import pytest

from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.share_wire import RawMember, set_group
from compat.test_group_requests import find
from compat.test_share_requests import put
from compat.wire import create_topic
from ottla.protocol.messages.share_groups import AcknowledgementBatch

ACCEPT, RELEASE, REJECT = 1, 2, 3
LONG_MS = 60_000  # that a fetch may wait for what must come
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    served = ServedBroker(
        tmp_path_factory.mktemp("queues") / "data",
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
def raw(broker: ServedBroker) -> Iterator[RawConnection]:
    with connected(broker.address) as connection:
        yield connection


@pytest.fixture
def topic(raw: RawConnection) -> str:
    """A topic, and a group of the same name that reads it from the beginning."""
    name = f"work-{next(_numbers)}"
    create_topic(raw, name)
    set_group(raw, name, share_auto_offset_reset="earliest")
    return name


def joined(raw: RawConnection, topic: str, member_id: str = "m") -> RawMember:
    made = RawMember(raw, topic, member_id, topic)
    made.join()
    return made


def test_a_released_record_waits_and_holds_up_no_other(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    set_group(raw, topic, share_retry_backoff_ms="400")
    member = joined(raw, topic)
    put(raw, topic, 0, 1, 2)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 2, 1)]
    begun_s = time.monotonic()
    assert member.acknowledge((0, 0, [RELEASE]), (1, 2, [ACCEPT])) == 0
    assert broker.metric("ottla_share_records_waiting") == 1
    put(raw, topic, 3)
    assert member.take(max_wait_ms=LONG_MS) == [(3, 3, 1)]
    assert member.take(max_wait_ms=LONG_MS) == [(0, 0, 2)], "the fetch is woken in time"
    assert time.monotonic() - begun_s >= 0.4


def test_waits_are_durable_and_a_member_says_how_long_they_are(
    broker: ServedBroker, raw: RawConnection, topic: str
) -> None:
    member = joined(raw, topic)
    put(raw, topic, 0, 1, 2)
    assert member.take(max_wait_ms=LONG_MS) == [(0, 2, 1)]
    late = AcknowledgementBatch(
        first_offset=0, last_offset=0, acknowledge_types=[RELEASE], retry_delay_ms=3_600_000
    )
    unseen = AcknowledgementBatch(
        first_offset=1, last_offset=1, acknowledge_types=[RELEASE], is_uncounted=True
    )
    assert member.acknowledge(late, unseen, (2, 2, [RELEASE])) == 0
    broker.end(signal.SIGKILL)
    broker.start()
    with connected(broker.address) as again:
        member = joined(again, topic, "n")
        assert member.take(max_wait_ms=LONG_MS) == [(1, 1, 1), (2, 2, 2)]
        assert member.take(max_wait_ms=0) == []
