"""All groups of a shard: found, listed, described, deleted, forgotten."""

from itertools import count
from typing import Unpack

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket, written
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined, Synced
from ottla.coordinator.groups.commit_checks import Committer
from ottla.coordinator.groups.consumer_group import ConsumerGroup
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResult
from ottla.coordinator.groups.consumer_records import (
    CurrentDropped,
    EpochDropped,
    MemberDropped,
    MemberStored,
)
from ottla.coordinator.groups.groups import Groups
from ottla.coordinator.groups.offsets import Commit, DeletedOffsets, UnstableOffset
from ottla.coordinator.groups.records import (
    GroupDecision,
    GroupDropped,
    GroupStored,
    OffsetDropped,
    OffsetPending,
    read_entry,
    to_bytes,
)
from ottla.coordinator.runtime.log_entries import Entry, ProducerIdentity, TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import NO_EPOCH, Offset, ProducerEpoch, ProducerId, TopicPartition

T, U = TopicPartition("t", 0), TopicPartition("u", 0)
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
ALONE = Committer(member_id="", instance_id=None, generation=-1, version=9)


@pytest.fixture
def groups() -> Groups:
    ids = count(1)
    return Groups(lambda: GroupLimits(initial_delay_ms=0), lambda: str(next(ids)))


def only(decision: GroupDecision) -> object:
    """The answer of an decision that has one."""
    ((_, answer),) = decision.responses
    return answer


def joined(groups: Groups, group_id: str = "g", **more: Unpack[group_members.JoinOptions]) -> str:
    """A group with one member that has its assignment; the member's id."""
    answer = only(groups.join(FakeTicket(1), group_id, group_members.join(version=3, **more), 0))
    assert isinstance(answer, Joined)
    assert answer.error is ErrorCode.NONE
    sync = group_members.sync(answer.member_id, answer.generation, {answer.member_id: b"all"})
    assert isinstance(only(groups.sync(FakeTicket(2), group_id, sync, 0)), Synced)
    return answer.member_id


def commit(groups: Groups, group_id: str, *tps: TopicPartition, now_ms: int = 0) -> None:
    commits = [Commit(tp, Offset(1), NO_EPOCH, "") for tp in tps]
    assert only(groups.commit(FakeTicket(1), group_id, ALONE, commits, now_ms)) == [
        ErrorCode.NONE
    ] * len(tps)


def test_a_group_that_nobody_made_has_no_members(groups: Groups) -> None:
    answer = only(groups.join(FakeTicket(1), "g", group_members.join("somebody"), 0))
    assert isinstance(answer, Joined)
    assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    answer = only(groups.sync(FakeTicket(1), "g", group_members.sync("somebody", 1), 0))
    assert answer == Synced(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert (
        only(groups.heartbeat(FakeTicket(1), "g", "m", None, 1, 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    )
    left = only(groups.leave(FakeTicket(1), "g", [("m", None), ("n", None)], 0))
    assert left == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert only(groups.describe(FakeTicket(1), "g")) is None
    assert only(groups.delete(FakeTicket(1), "g", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert only(groups.delete_offsets(FakeTicket(1), "g", [T], 0)) == DeletedOffsets(
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert groups.groups == {}


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_a_refused_join_leaves_no_group_behind(groups: Groups, session_ms: int) -> None:
    answer = only(groups.join(FakeTicket(1), "g", group_members.join(session_ms=session_ms), 0))
    assert isinstance(answer, Joined)
    assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups.groups == {}


def test_an_id_that_nobody_comes_back_with_leaves_no_group_behind(groups: Groups) -> None:
    groups.join(FakeTicket(1), "g", group_members.join(session_ms=6000), 0)
    assert groups.next_deadline_ms() == 6000
    groups.pass_time(6000)
    assert groups.groups == {}
    assert groups.next_deadline_ms() is None


def test_a_deleted_group_is_forgotten_with_its_offsets(groups: Groups) -> None:
    member_id = joined(groups)
    assert only(groups.delete(FakeTicket(1), "g", 0)) is ErrorCode.NON_EMPTY_GROUP
    groups.leave(FakeTicket(1), "g", [(member_id, None)], 0)
    commit(groups, "g", T)
    decision = groups.delete(FakeTicket(1), "g", 0)
    assert decision.records == (OffsetDropped("g", T), GroupDropped("g"))
    assert groups.groups == {}
    assert groups.offsets.by_group == {}


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(groups: Groups) -> None:
    commit(groups, "g", T, U)
    joined(groups)
    decision = groups.delete_offsets(FakeTicket(1), "g", [T, U], 0)
    assert only(decision) == DeletedOffsets(
        ErrorCode.NONE, (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
    )
    assert decision.records == (OffsetDropped("g", U),)


def test_a_group_that_is_not_of_consumers_keeps_its_offsets_while_it_has_members(
    groups: Groups,
) -> None:
    member_id = joined(groups, protocol_type="connect", protocols={"v0": b"opaque"})
    assert only(groups.delete_offsets(FakeTicket(1), "g", [T], 0)) == DeletedOffsets(
        ErrorCode.NON_EMPTY_GROUP
    )
    groups.leave(FakeTicket(1), "g", [(member_id, None)], 0)
    assert only(groups.delete_offsets(FakeTicket(1), "g", [T], 0)) == DeletedOffsets(
        ErrorCode.NONE, (ErrorCode.NONE,)
    )


def test_consumers_whose_metadata_nobody_can_read_may_read_anything(groups: Groups) -> None:
    commit(groups, "g", T)
    joined(groups, protocols={"own": b"?"})
    assert only(groups.delete_offsets(FakeTicket(1), "g", [T], 0)) == DeletedOffsets(
        ErrorCode.NONE, (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
    )
    assert only(groups.expire(FakeTicket(1), 0, 10**9)) == (0, 0)


def test_deleted_topics_are_forgotten_everywhere(groups: Groups) -> None:
    commit(groups, "g", T, U)
    commit(groups, "h", U)
    decision = groups.drop_partitions(FakeTicket(1), lambda tp: tp.topic == "u", 0)
    assert set(decision.records) == {OffsetDropped("g", U), OffsetDropped("h", U)}
    assert list(groups.offsets.by_group) == ["g"]


def test_one_deadline_stands_for_all_groups_and_is_never_late(groups: Groups) -> None:
    late = joined(groups, "late", session_ms=20_000)
    early = joined(groups, "early", session_ms=10_000)
    assert groups.next_deadline_ms() == 10_000
    groups.heartbeat(FakeTicket(1), "early", early, None, 1, 5_000)
    assert groups.pass_time(10_000) == GroupDecision(), "a heartbeat came in between"
    assert groups.next_deadline_ms() == 15_000
    (record,) = groups.pass_time(15_000).records
    assert isinstance(record, GroupStored)
    assert (record.group_id, record.members) == ("early", ())
    assert groups.next_deadline_ms() == 20_000
    assert late in groups.groups["late"].members


def test_an_oversized_generation_is_refused_to_its_leader(groups: Groups) -> None:
    groups.limits = lambda: GroupLimits(initial_delay_ms=0, stored_bytes_max=1000)
    answer = only(groups.join(FakeTicket(1), "g", group_members.join(version=3), 0))
    assert isinstance(answer, Joined)
    large = group_members.sync(answer.member_id, 1, {answer.member_id: bytes(1000)})
    assert only(groups.sync(FakeTicket(2), "g", large, 0)) == Synced(
        error=ErrorCode.UNKNOWN_SERVER_ERROR
    )
    small = group_members.sync(answer.member_id, 1, {answer.member_id: b"p0"})
    assert only(groups.sync(FakeTicket(2), "g", small, 0)) == Synced(
        protocol_type="consumer", protocol="range", assignment=b"p0"
    )


# Offsets in transactions


def commit_pending(groups: Groups, committer: Committer = ALONE, *tps: TopicPartition) -> ErrorCode:
    """Commit in a transaction; the one error that all partitions got."""
    commits = [Commit(tp, Offset(9), NO_EPOCH, "") for tp in tps or (T,)]
    decision = groups.commit_in_transaction(FakeTicket(1), "g", PRODUCER, committer, commits, 0)
    errors = only(decision)
    assert isinstance(errors, list)
    (error,) = set(errors)
    assert isinstance(error, ErrorCode)
    return error


def member(member_id: str, generation: int = 1, instance_id: str | None = None) -> Committer:
    return Committer(member_id=member_id, instance_id=instance_id, generation=generation, version=3)


def end_transaction(groups: Groups, *, is_committed: bool) -> None:
    groups.replay(TransactionEnded(PRODUCER, is_committed), 0)


def test_offsets_in_a_transaction_are_written_for_its_producer(groups: Groups) -> None:
    commits = [Commit(T, Offset(9), NO_EPOCH, "m")]
    decision = groups.commit_in_transaction(FakeTicket(1), "g", PRODUCER, ALONE, commits, 5)
    (record,) = decision.records
    assert isinstance(record, OffsetPending)
    assert record.producer == PRODUCER
    assert (record.offset.offset, record.offset.metadata) == (9, "m")
    assert only(groups.fetch(FakeTicket(1), "g", [T])) == [None]
    assert only(groups.fetch(FakeTicket(1), "g", [T], is_stable=True)) == [UnstableOffset(T)]
    end_transaction(groups, is_committed=True)
    assert only(groups.fetch(FakeTicket(1), "g", [T], is_stable=True)) == [record.offset]


def test_a_zombie_of_an_older_generation_commits_nothing(groups: Groups) -> None:
    assert commit_pending(groups, member("m")) is ErrorCode.ILLEGAL_GENERATION
    member_id = joined(groups, instance_id="i")
    assert commit_pending(groups, member(member_id)) is ErrorCode.NONE
    assert commit_pending(groups, member(member_id, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert commit_pending(groups, member("m")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_pending(groups, member("m", 1, "i")) is ErrorCode.FENCED_INSTANCE_ID
    assert commit_pending(groups, member("m", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_pending(groups, ALONE) is ErrorCode.NONE, "as before KIP-447"


def test_a_group_with_pending_offsets_is_not_forgotten(groups: Groups) -> None:
    assert commit_pending(groups) is ErrorCode.NONE
    assert only(groups.expire(FakeTicket(1), 0, 10**9)) == (0, 0)
    groups.end_load()
    assert list(groups.groups) == ["g"]
    end_transaction(groups, is_committed=False)
    assert groups.expire(FakeTicket(1), 0, 10**9).records == (GroupDropped("g"),)
    assert groups.groups == {}


def test_pending_offsets_go_with_their_group(groups: Groups) -> None:
    assert commit_pending(groups, ALONE, T, U) is ErrorCode.NONE
    deleted = groups.delete_offsets(FakeTicket(1), "g", [U], 0)
    assert deleted.records == (OffsetDropped("g", U),)
    assert groups.delete(FakeTicket(1), "g", 0).records == (
        OffsetDropped("g", T),
        GroupDropped("g"),
    )
    end_transaction(groups, is_committed=True)
    assert groups.offsets.by_group == {}


def test_a_load_finds_a_group_that_has_only_pending_offsets(groups: Groups) -> None:
    decision = groups.commit_in_transaction(
        FakeTicket(1), "g", PRODUCER, ALONE, [Commit(T, Offset(9), NO_EPOCH, "")], 0
    )
    loaded = Groups(groups.limits, groups.new_id)
    for record in written(decision):
        entry = Entry(*to_bytes(record), PRODUCER)
        found = read_entry(entry)
        assert found == record
        loaded.replay(found, 0)
    loaded.end_load()
    assert list(loaded.groups) == ["g"]
    assert only(loaded.fetch(FakeTicket(1), "g", [T], is_stable=True)) == [UnstableOffset(T)]


def test_without_room_no_new_group_is_made_and_those_there_are_go_on(groups: Groups) -> None:
    commit(groups, "known", T)
    groups.has_room = lambda: False
    commit(groups, "known", T)
    commits = [Commit(T, Offset(1), NO_EPOCH, "")]
    refused = ErrorCode.POLICY_VIOLATION
    assert only(groups.commit(FakeTicket(1), "new", ALONE, commits, 0)) == [refused]
    assert commit_pending(groups, ALONE, T) is refused
    answer = only(groups.join(FakeTicket(1), "new", group_members.join(version=3), 0))
    assert isinstance(answer, Joined)
    assert answer.error is refused
    told = only(
        groups.consumer_heartbeat(
            FakeTicket(1), "new", ConsumerHeartbeat(member_id="m", epoch=0), 0
        )
    )
    assert isinstance(told, ConsumerHeartbeatResult)
    assert told.error is refused
    assert set(groups.groups) == {"known"}


def test_tombstones_of_a_consumer_group_make_none_and_leave_a_classic_one_alone(
    groups: Groups,
) -> None:
    """A group that became a classic one has left them in the log."""
    member_id = joined(groups)
    for group_id in ("g", "gone"):
        for tombstone in (
            CurrentDropped(group_id, member_id),
            MemberDropped(group_id, member_id),
            EpochDropped(group_id),
        ):
            groups.replay(tombstone, 0)
    assert list(groups.groups) == ["g"]
    assert list(groups.groups["g"].members) == [member_id]


def test_a_consumer_group_goes_with_the_tombstone_of_its_epoch(groups: Groups) -> None:
    groups.replay(MemberStored(group_id="g", member_id="m"), 0)
    assert isinstance(groups.groups["g"], ConsumerGroup)
    groups.replay(MemberDropped("g", "m"), 0)
    assert groups.groups["g"].members == {}
    groups.replay(GroupDropped("g"), 0)
    assert list(groups.groups) == ["g"], "that is the tombstone of a classic group"
    groups.replay(EpochDropped("g"), 0)
    assert groups.groups == {}


def test_a_commit_that_is_refused_makes_no_group(groups: Groups) -> None:
    commits = [Commit(T, Offset(1), NO_EPOCH, "x" * 100_000)]
    refused = only(groups.commit(FakeTicket(1), "g", ALONE, commits, 0))
    assert refused == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert groups.groups == {}
    assert commit_pending(groups) is ErrorCode.NONE
    assert list(groups.groups) == ["g"]
