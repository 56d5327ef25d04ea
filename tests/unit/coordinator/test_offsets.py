"""Committed offsets: what is remembered, and for how long."""

from ottla.coordinator.offsets import Commit, CommittedOffsets
from ottla.coordinator.records import OffsetDropped
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def committed(*places: tuple[TopicPartition, int, int]) -> CommittedOffsets:
    offsets = CommittedOffsets()
    for tp, offset, now_ms in places:
        commit = Commit(tp, Offset(offset), NO_EPOCH, "")
        records, _ = offsets.commit("g", [commit], now_ms, metadata_bytes_max=10)
        for record in records:
            offsets.replay(record)
    return offsets


def test_deciding_changes_nothing() -> None:
    offsets = CommittedOffsets()
    offsets.commit("g", [Commit(A, Offset(1), NO_EPOCH, "")], 0, metadata_bytes_max=10)
    assert offsets.fetch("g", A) is None


def test_metadata_has_a_limit_in_bytes_and_the_others_are_committed() -> None:
    commits = [Commit(A, Offset(1), NO_EPOCH, "ä" * 6), Commit(B, Offset(2), NO_EPOCH, "ä" * 5)]
    records, errors = CommittedOffsets().commit("g", commits, 0, metadata_bytes_max=10)
    assert errors == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert [record.tp for record in records] == [B]


def test_a_partition_that_is_named_twice_is_written_once() -> None:
    commits = [Commit(A, Offset(1), NO_EPOCH, ""), Commit(A, Offset(2), NO_EPOCH, "")]
    records, errors = CommittedOffsets().commit("g", commits, 0, metadata_bytes_max=10)
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
    assert offsets.drop_topics(lambda name: name == "b") == (OffsetDropped("g", B),)


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
