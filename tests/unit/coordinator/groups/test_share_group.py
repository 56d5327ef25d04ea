"""Share groups: members, epochs, assignments, and the states that partitions need first."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.all_groups import AllGroups, ShareStatesKnown
from ottla.coordinator.groups.classic_protocol import GroupLimits
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat
from ottla.coordinator.groups.descriptions import GroupType
from ottla.coordinator.groups.records import GroupDecision, from_bytes, to_bytes
from ottla.coordinator.groups.share_assignor import assign
from ottla.coordinator.groups.share_group import (
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from ottla.coordinator.groups.share_records import (
    ShareCurrentSet,
    ShareEpochSet,
    ShareGroupDropped,
    ShareGroupRecord,
    ShareKey,
    ShareMemberStored,
    ShareStateTopics,
    ShareTargetEpochSet,
    ShareTargetSet,
)
from ottla.coordinator.groups.topics import NOTHING, IdPartition
from ottla.coordinator.runtime.log_entries import TransactionEnded
from ottla.errors import ErrorCode
from ottla.model import Uuid

TICKET = FakeTicket(1)
JOIN = ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"t"}))
T, U = Uuid(b"t" * 16), Uuid(b"u" * 16)


class Shard:
    """A machine, and its log as bytes."""

    def __init__(self, **topics: int) -> None:
        self.catalog = TopicCatalog(**topics)
        self.machine = self._new()
        self.log: list[tuple[bytes, bytes | None]] = []

    def _new(self) -> AllGroups:
        limits = ShareGroupLimits(session_timeout_ms=10_000, members_max=3)
        return AllGroups(
            GroupLimits,
            lambda: "id",
            topics=lambda: self.catalog.image,
            share_limits=lambda group_id: limits,
        )

    def note(self, decision: GroupDecision) -> Any:
        for record in decision.records:
            assert not isinstance(record, TransactionEnded)
            self.log.append(to_bytes(record))
        self.check_replay()
        return decision.responses[0].value if decision.responses else None

    def check_replay(self) -> None:
        """Another machine that reads the log knows the same."""
        other = self._new()
        for key, value in self.log:
            record = from_bytes(key, value)
            assert record is not None
            other.replay(record, 0)
        assert other.share.keys() == self.machine.share.keys()
        for group_id, group in self.machine.share.items():
            again = other.share[group_id]
            for name in ("epoch", "target_epoch", "members", "targets", "currents"):
                assert getattr(again, name) == getattr(group, name), name
            assert again.state_topics == group.state_topics

    def beat(self, heartbeat: ShareHeartbeat, now_ms: int = 0) -> ShareHeartbeatResult:
        decision = self.machine.share_heartbeat(TICKET, "g", heartbeat, now_ms)
        result = self.note(decision)
        assert isinstance(result, ShareHeartbeatResult)
        return result

    def initialized(self, result: ShareHeartbeatResult) -> None:
        machine = self.machine
        self.note(machine.note_share_initialized(TICKET, "g", result.initializing, 0))


def test_a_member_gets_its_partitions_in_its_first_heartbeat() -> None:
    shard = Shard(t=2)
    joined = shard.beat(JOIN)
    assert (joined.error, joined.epoch) == (ErrorCode.NONE, 1)
    assert joined.assigned == joined.initializing == shard.catalog.all_of("t")
    shard.initialized(joined)
    beaten = shard.beat(ShareHeartbeat(member_id="m", epoch=1))
    assert (beaten.assigned, beaten.initializing) == (None, NOTHING)


def test_states_are_asked_for_until_they_are_there() -> None:
    shard = Shard(t=1)
    first = shard.beat(JOIN)
    again = shard.beat(ShareHeartbeat(member_id="m", epoch=1))
    assert again.initializing == first.initializing
    shard.initialized(first)
    shard.catalog.grow("t", 2)
    grown = shard.beat(ShareHeartbeat(member_id="m", epoch=1))
    assert grown.epoch == 2
    assert grown.initializing == {shard.catalog.partition("t", 1)}


def test_a_member_that_missed_a_response_sends_its_last_epoch() -> None:
    shard = Shard(t=1)
    shard.beat(JOIN)
    shard.beat(replace(JOIN, member_id="n"))
    moved = shard.beat(ShareHeartbeat(member_id="m", epoch=1))
    assert moved.epoch == 2
    repeated = shard.beat(ShareHeartbeat(member_id="m", epoch=1))
    assert (repeated.epoch, repeated.assigned) == (2, shard.catalog.all_of("t"))
    assert shard.beat(ShareHeartbeat(member_id="m", epoch=0, topics=JOIN.topics)).epoch == 2
    assert shard.beat(ShareHeartbeat(member_id="m", epoch=9)).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_silent_member_is_removed_and_the_group_stays() -> None:
    shard = Shard(t=1)
    shard.beat(JOIN)
    assert shard.machine.next_deadline_ms() == 10_000
    shard.note(shard.machine.pass_time(9_999))
    assert shard.machine.share["g"].state == "Stable"
    shard.note(shard.machine.pass_time(10_000))
    assert shard.machine.share["g"].state == "Empty"
    assert shard.beat(ShareHeartbeat(member_id="m", epoch=1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    shard.note(shard.machine.expire(TICKET, 0, 10**9))
    assert "g" in shard.machine.share


def test_a_group_id_belongs_to_one_kind_of_group() -> None:
    shard = Shard(t=1)
    beat = ConsumerHeartbeat(
        member_id="c",
        epoch=0,
        rebalance_timeout_ms=1,
        topics=frozenset({"t"}),
        owned=frozenset(),
    )
    shard.note(shard.machine.consumer_heartbeat(TICKET, "g", beat, 0))
    assert shard.beat(JOIN).error is ErrorCode.GROUP_ID_NOT_FOUND
    other = Shard(t=1)
    other.beat(JOIN)
    refused = other.note(other.machine.consumer_heartbeat(TICKET, "g", beat, 0))
    assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND
    listed = other.note(other.machine.list(TICKET))
    assert [(one.group_id, one.type) for one in listed] == [("g", GroupType.SHARE)]


def test_a_group_is_deleted_after_the_states_of_its_partitions() -> None:
    shard = Shard(t=2)
    shard.initialized(shard.beat(JOIN))
    machine = shard.machine
    refused = shard.note(machine.begin_share_deletion(TICKET, "g", None, 0))
    assert refused.error is ErrorCode.NON_EMPTY_GROUP
    shard.beat(ShareHeartbeat(member_id="m", epoch=-1))
    assert shard.note(machine.delete(TICKET, "g", 0)) is ErrorCode.NON_EMPTY_GROUP
    found = shard.note(machine.begin_share_deletion(TICKET, "g", None, 0))
    assert found == ShareStatesKnown(ErrorCode.NONE, shard.catalog.all_of("t"))
    assert machine.share["g"].state_topics.deleting == {shard.catalog.partition("t", 0).topic_id}
    assert shard.note(machine.delete(TICKET, "g", 0)) is ErrorCode.NONE
    assert not machine.share


def test_a_member_that_joins_while_states_are_deleted_asks_for_them_again() -> None:
    shard = Shard(t=1)
    shard.initialized(shard.beat(JOIN))
    shard.beat(ShareHeartbeat(member_id="m", epoch=-1))
    shard.note(shard.machine.begin_share_deletion(TICKET, "g", None, 0))
    assert shard.beat(JOIN).initializing == shard.catalog.all_of("t")


def test_a_state_that_an_administrator_begins_anew_is_not_asked_for_again() -> None:
    """Else the next heartbeat would begin it without the offset, if the administrator died."""
    shard = Shard(t=2)
    shard.initialized(shard.beat(JOIN))
    shard.beat(ShareHeartbeat(member_id="m", epoch=-1))
    one = frozenset({shard.catalog.partition("t", 0)})
    epoch = shard.machine.share["g"].epoch
    begun = shard.note(shard.machine.begin_share_states(TICKET, "g", one, 0))
    assert begun == ShareStatesKnown(ErrorCode.NONE, one, epoch + 1)
    assert shard.beat(JOIN).initializing == NOTHING


def test_a_refused_first_heartbeat_makes_no_group() -> None:
    shard = Shard(t=1)
    refused = shard.beat(replace(JOIN, member_id="m" * 37))
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert not shard.machine.share
    assert not shard.log


@given(
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.sets(st.sampled_from([T, U]))),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_every_partition_has_two_members_and_every_member_a_partition(
    subscriptions: dict[str, set[Uuid]], t_count: int, u_count: int
) -> None:
    counts = {T: t_count, U: u_count}
    subscribed = {member: frozenset(topics) for member, topics in subscriptions.items()}
    targets = assign(subscribed, counts)
    assert targets.keys() == subscriptions.keys()
    for member, partitions in targets.items():
        assert {p.topic_id for p in partitions} <= subscriptions[member]
        assert bool(partitions) == any(counts[topic] for topic in subscriptions[member])
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    everything = {IdPartition(t, index) for t in wanted for index in range(counts[t])}
    assert set().union(*targets.values()) == everything
    for partition in everything:
        readers = sum(partition.topic_id in topics for topics in subscriptions.values())
        assert sum(partition in found for found in targets.values()) >= min(readers, 2)
    if len(set(map(frozenset, subscriptions.values()))) == 1:
        sizes = {len(partitions) for partitions in targets.values()}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "record",
    [
        ShareEpochSet(group_id="g", epoch=3, fingerprint=-4),
        ShareMemberStored(
            group_id="g",
            member_id="m",
            rack_id="r",
            client_id="c",
            client_host="/h",
            topics=("a", "b"),
        ),
        ShareTargetEpochSet(group_id="g", epoch=2),
        ShareTargetSet(group_id="g", member_id="m", partitions=frozenset({IdPartition(T, 1)})),
        ShareCurrentSet(
            group_id="g",
            member_id="m",
            epoch=2,
            previous_epoch=1,
            assigned=frozenset({IdPartition(T, 1), IdPartition(U, 0)}),
        ),
        ShareStateTopics(
            group_id="g",
            initializing=frozenset({IdPartition(T, 1)}),
            initialized=frozenset({IdPartition(T, 0)}),
            deleting=frozenset({U}),
            names=((T, "t"), (U, "u")),
        ),
        *(
            ShareGroupDropped(group_id="g", key=key, member_id="m" if key in {10, 13, 14} else "")
            for key in ShareKey
        ),
    ],
)
def test_records_survive_being_written(record: ShareGroupRecord) -> None:
    key, value = to_bytes(record)
    assert from_bytes(key, value) == record
    assert key[1] in range(10, 16)


def test_a_member_that_dies_after_the_first_deadline_is_missed_as_well() -> None:
    """The first deadline passes with nothing to do; there has to be a next one."""
    shard = Shard(t=1)
    shard.initialized(shard.beat(JOIN))
    shard.beat(ShareHeartbeat(member_id="m", epoch=1), now_ms=6_000)
    assert shard.machine.pass_time(10_000).records == ()
    assert shard.machine.next_deadline_ms() == 16_000
    assert shard.machine.pass_time(16_000).records != ()
    assert not shard.machine.share["g"].members
