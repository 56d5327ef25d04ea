"""Transactions as Kafka writes them: byte for byte, in both versions."""

from dataclasses import replace
from struct import pack

import pytest

from ottla.coordinator.runtime.log_entries import ProducerIdentity, UnreadableRecord
from ottla.coordinator.transactions.records import (
    State,
    Transaction,
    TransactionDropped,
    from_bytes,
    to_bytes,
)
from ottla.model import ProducerEpoch, ProducerId, TimestampMs, TopicPartition

KEY = pack(">hh", 0, 2) + b"id"
PLAIN = Transaction(
    transactional_id="id",
    producer=ProducerIdentity(ProducerId(7), ProducerEpoch(3)),
    timeout_ms=60_000,
    state=State.ONGOING,
    partitions=frozenset({TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)}),
    started_ms=TimestampMs(1000),
    changed_ms=TimestampMs(2000),
)
FULL = replace(
    PLAIN,
    state=State.PREPARE_COMMIT,
    last=ProducerIdentity(ProducerId(7), ProducerEpoch(2)),
    next_id=ProducerId(9),
    version=2,
)


@pytest.mark.parametrize("state", [state for state in State if state is not State.DEAD])
def test_what_is_written_is_read(state: State) -> None:
    for record in (PLAIN, FULL, replace(FULL, last=None), replace(PLAIN, partitions=frozenset())):
        stored = replace(record, state=state)
        assert from_bytes(*to_bytes(stored)) == stored


def test_a_forgotten_id_has_no_value() -> None:
    assert to_bytes(TransactionDropped("id")) == (KEY, None)
    assert from_bytes(KEY, None) == TransactionDropped("id")


def test_the_newer_version_is_flexible_and_has_what_is_special_in_tags() -> None:
    key, value = to_bytes(FULL)
    assert key == KEY
    partitions = (
        *(b"\x03", b"\x02a", b"\x03", pack(">ii", 0, 2), b"\x00"),
        *(b"\x02b", b"\x02", pack(">i", 1), b"\x00"),
    )
    tags = (
        b"\x04",
        *(b"\x00\x08", pack(">q", 7)),  # the producer id before this one
        *(b"\x01\x08", pack(">q", 9)),  # and the one after it
        *(b"\x02\x02", pack(">h", 2)),  # the client's version
        *(b"\xe8\x07\x02", pack(">h", 2)),  # ours: the epoch before this one
    )
    assert value == b"".join(
        (
            pack(">hqhib", 1, 7, 3, 60_000, 2),
            *partitions,
            pack(">qq", 2000, 1000),
            *tags,
        )
    )


def test_the_older_version_of_kafka_is_read() -> None:
    value = b"".join(
        (
            pack(">hqhib", 0, 7, 3, 60_000, 1),
            pack(">i", 2),
            *(pack(">h", 1), b"a", pack(">iii", 2, 0, 2)),
            *(pack(">h", 1), b"b", pack(">ii", 1, 1)),
            pack(">qq", 2000, 1000),
        )
    )
    assert from_bytes(KEY, value) == PLAIN
    nothing = pack(">hqhibiqq", 0, 7, 3, 60_000, 0, -1, 2000, -1)
    found = from_bytes(KEY, nothing)
    assert isinstance(found, Transaction)
    assert (found.state, found.partitions, found.last) == (State.EMPTY, frozenset(), None)


def test_kafkas_own_records_say_less_about_who_was_replaced() -> None:
    value = pack(">hqhibbqqb", 1, 7, 3, 60_000, 4, 1, 2000, 1000, 1) + b"\x00\x08" + pack(">q", 7)
    found = from_bytes(KEY, value)
    assert isinstance(found, Transaction)
    assert found.state is State.COMPLETE_COMMIT
    assert found.last is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (KEY[:3], None),
        (KEY, b""),
        (KEY, pack(">h", 2)),
        (KEY, pack(">hqhibiqq", 0, 7, 3, 60_000, 99, 0, 2000, 1000)),
        (KEY, pack(">hqhi", 0, 7, 3, 60_000)),
    ],
)
def test_bytes_that_nobody_wrote_are_unreadable(key: bytes, value: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        from_bytes(key, value)


def test_a_kind_of_record_from_the_future_is_left_out() -> None:
    assert from_bytes(pack(">h", 1) + b"?", b"?") is None


def test_states_have_the_words_that_tools_show() -> None:
    assert [state.title for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
