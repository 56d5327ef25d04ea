"""Committed offsets: what is remembered, and for how long."""

import pytest

from ottla.coordinator.groups.offsets import Commit, CommittedOffsets, UnstableOffset
from ottla.coordinator.groups.records import OffsetCommitted, OffsetDropped, OffsetPending
from ottla.coordinator.runtime.log_entries import ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import (
    NO_EPOCH,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def committed(*places: tuple[TopicPartition, int, int]) -> CommittedOffsets:
    offsets = CommittedOffsets()
    for tp, offset, now_ms in places:
        commit = Commit(tp, Offset(offset), NO_EPOCH, "")
        records, _ = offsets.commit("g", [commit], now_ms, metadata_bytes_max=lambda: 10)
        for record in records:
            offsets.replay(record)
    return offsets


def test_deciding_changes_nothing() -> None:
    offsets = CommittedOffsets()
    offsets.commit("g", [Commit(A, Offset(1), NO_EPOCH, "")], 0, metadata_bytes_max=lambda: 10)
    assert offsets.fetch("g", A) is None


def test_metadata_has_a_limit_in_bytes_and_the_others_are_committed() -> None:
    commits = [Commit(A, Offset(1), NO_EPOCH, "ä" * 6), Commit(B, Offset(2), NO_EPOCH, "ä" * 5)]
    records, errors = CommittedOffsets().commit("g", commits, 0, metadata_bytes_max=lambda: 10)
    assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert [record.tp for record in records] == [B]


def test_a_partition_that_is_named_twice_is_written_once() -> None:
    commits = [Commit(A, Offset(1), NO_EPOCH, ""), Commit(A, Offset(2), NO_EPOCH, "")]
    records, errors = CommittedOffsets().commit("g", commits, 0, metadata_bytes_max=lambda: 10)
    assert [record.offset for record in records] == [2]
    assert errors == [ErrorCode.NONE] * 2


def test_what_is_not_known_cannot_be_dropped() -> None:
    offsets = committed((A, 1, 0))
    assert offsets.drop("g", [A, A, B]) == (OffsetDropped("g", A),)
    assert offsets.drop("other", [A]) == ()
    assert offsets.drop_all("g") == (OffsetDropped("g", A),)


def test_a_group_whose_last_offset_went_takes_no_room() -> None:
    offsets = committed((A, 1, 0))
    offsets.replay_drop(OffsetDropped("g", A))
    offsets.replay_drop(OffsetDropped("g", B))
    assert offsets.by_group == {}


def test_offsets_of_deleted_topics_are_found_in_every_group() -> None:
    offsets = committed((A, 1, 0), (B, 1, 0))
    assert offsets.drop_partitions(lambda tp: tp.topic == "b") == (OffsetDropped("g", B),)


def test_an_offset_ages_from_the_later_of_its_commit_and_the_last_member() -> None:
    offsets = committed((A, 1, 100), (B, 1, 300))
    nothing = frozenset[str]()
    assert offsets.expired("g", 0, nothing, 99) == ()
    assert offsets.expired("g", 0, nothing, 100) == (OffsetDropped("g", A),)
    assert offsets.expired("g", 200, nothing, 199) == ()
    assert offsets.expired("g", 200, nothing, 200) == (OffsetDropped("g", A),)
    assert len(offsets.expired("g", 200, nothing, 300)) == 2


def test_an_offset_of_a_subscribed_topic_does_not_age() -> None:
    offsets = committed((A, 1, 0), (B, 1, 0))
    assert offsets.expired("g", 0, frozenset({"a"}), 1000) == (OffsetDropped("g", B),)


# In transactions

P, Q = (
    ProducerIdentity(ProducerId(1), ProducerEpoch(0)),
    ProducerIdentity(ProducerId(2), ProducerEpoch(0)),
)


def pending(
    offsets: CommittedOffsets, producer: ProducerIdentity, tp: TopicPartition, at: int
) -> None:
    commit = Commit(tp, Offset(at), NO_EPOCH, "")
    records, _ = offsets.commit("g", [commit], 0, metadata_bytes_max=lambda: 10)
    for record in records:
        offsets.replay_pending(OffsetPending(producer, record))


def end(offsets: CommittedOffsets, producer: ProducerIdentity, *, is_committed: bool) -> None:
    offsets.replay_end(TransactionEnded(producer, is_committed))


def place(offsets: CommittedOffsets, tp: TopicPartition) -> int | None:
    found = offsets.fetch("g", tp)
    assert not isinstance(found, UnstableOffset)
    return None if found is None else found.offset


def test_a_pending_offset_is_not_seen_and_can_be_asked_not_to_be_overlooked() -> None:
    offsets = committed((A, 1, 0))
    pending(offsets, P, A, 5)
    pending(offsets, P, B, 6)
    assert (place(offsets, A), place(offsets, B)) == (1, None)
    assert offsets.fetch("g", A, is_stable=True) == UnstableOffset(A)
    assert offsets.fetch("g", B, is_stable=True) == UnstableOffset(B)
    assert offsets.fetch_all("g", is_stable=True) == [UnstableOffset(A)]
    assert list(offsets.groups_pending) == ["g"]


@pytest.mark.parametrize(("is_committed", "at"), [(True, 5), (False, 1)])
def test_the_end_of_the_transaction_decides_about_its_offsets(is_committed: bool, at: int) -> None:
    offsets = committed((A, 1, 0))
    pending(offsets, P, A, 5)
    end(offsets, Q, is_committed=True)
    assert offsets.is_pending("g", A), "another producer's end means nothing"
    end(offsets, P, is_committed=is_committed)
    assert place(offsets, A) == at
    assert not offsets.is_pending("g", A)
    assert not offsets.groups_pending


def test_the_last_word_counts_whenever_its_transaction_ends() -> None:
    offsets = CommittedOffsets()
    pending(offsets, P, A, 5)
    pending(offsets, Q, A, 6)
    end(offsets, Q, is_committed=True)
    end(offsets, P, is_committed=True)
    assert place(offsets, A) == 6


def test_a_word_said_again_is_the_last_one() -> None:
    offsets = CommittedOffsets()
    pending(offsets, P, A, 5)
    pending(offsets, Q, A, 6)
    pending(offsets, P, A, 7)
    end(offsets, P, is_committed=True)
    end(offsets, Q, is_committed=True)
    assert place(offsets, A) == 7


def test_a_transaction_that_aborts_leaves_the_words_of_others() -> None:
    offsets = CommittedOffsets()
    pending(offsets, P, A, 5)
    pending(offsets, Q, A, 6)
    end(offsets, Q, is_committed=False)
    assert offsets.is_pending("g", A)
    end(offsets, P, is_committed=True)
    assert place(offsets, A) == 5


def test_a_plain_commit_overtakes_what_was_pending_before_it() -> None:
    offsets = CommittedOffsets()
    pending(offsets, P, A, 5)
    offsets.replay(
        OffsetCommitted(group_id="g", tp=A, offset=Offset(3), committed_ms=TimestampMs(0))
    )
    end(offsets, P, is_committed=True)
    assert place(offsets, A) == 3


def test_what_is_only_pending_can_be_dropped_and_does_not_come_back() -> None:
    offsets = CommittedOffsets()
    pending(offsets, P, A, 5)
    assert offsets.drop("g", [A, B]) == (OffsetDropped("g", A),)
    assert offsets.drop_all("g") == (OffsetDropped("g", A),)
    assert offsets.drop_partitions(lambda tp: tp.topic == "a") == (OffsetDropped("g", A),)
    offsets.replay_drop(OffsetDropped("g", A))
    end(offsets, P, is_committed=True)
    assert place(offsets, A) is None
    assert not offsets.groups_pending


def test_an_offset_that_a_transaction_is_about_to_move_does_not_age() -> None:
    offsets = committed((A, 1, 0), (B, 1, 0))
    pending(offsets, P, A, 5)
    assert offsets.expired("g", 0, frozenset(), 1000) == (OffsetDropped("g", B),)
