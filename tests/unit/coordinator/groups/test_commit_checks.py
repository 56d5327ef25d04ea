"""Clients that commit and fetch offsets: members of the present generation, or of no group."""

from itertools import count

import pytest

from fakes import group_members
from fakes.tickets import FakeTicket
from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.classic_group import ClassicGroup, State
from ottla.coordinator.groups.classic_protocol import GroupLimits, Joined
from ottla.coordinator.groups.commit_checks import (
    Committer,
    check_commit,
    check_fetch,
    check_transactional_commit,
)
from ottla.coordinator.groups.consumer_group import ConsumerGroup, ConsumerLimits
from ottla.coordinator.groups.consumer_heartbeat import ConsumerHeartbeat
from ottla.errors import ErrorCode


def committer(
    member_id: str = "", generation: int = -1, *, instance_id: str | None = None, version: int = 9
) -> Committer:
    return Committer(
        member_id=member_id, instance_id=instance_id, generation=generation, version=version
    )


@pytest.fixture
def consumer_group() -> ConsumerGroup:
    catalog, ids = TopicCatalog(t=2), count(1)
    limits = ConsumerLimits(session_timeout_ms=10_000)
    return ConsumerGroup("g", lambda: limits, lambda: catalog.image, lambda: str(next(ids)))


@pytest.fixture
def classic_group() -> ClassicGroup:
    ids = count(1)
    return ClassicGroup("g", lambda: GroupLimits(initial_delay_ms=0), lambda: str(next(ids)))


def join_consumer(group: ConsumerGroup) -> int:
    """Join as member "m"; its epoch."""
    heartbeat = ConsumerHeartbeat(
        member_id="m",
        epoch=0,
        rebalance_timeout_ms=5000,
        topics=frozenset({"t"}),
        owned=frozenset(),
    )
    group.consumer_heartbeat(FakeTicket(1), heartbeat, 0)
    return group.replayed.current("m").epoch


def join_classic(group: ClassicGroup) -> str:
    """Join without syncing; the member's id."""
    decision = group.join(FakeTicket(1), group_members.join(version=3), 0)
    ((_, joined),) = decision.responses
    assert isinstance(joined, Joined)
    assert group.state is State.COMPLETING
    return joined.member_id


def test_a_consumer_without_a_group_commits_under_any_group_id() -> None:
    assert check_commit(None, committer()) is ErrorCode.NONE
    assert check_transactional_commit(None, committer()) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_member_of_a_group_that_does_not_exist_gets_the_error_its_version_knows(
    version: int, error: ErrorCode
) -> None:
    assert check_commit(None, committer("m", 1, version=version)) is error
    in_transaction = check_transactional_commit(None, committer("m", 1, version=version))
    assert in_transaction is ErrorCode.ILLEGAL_GENERATION


def test_a_member_that_has_not_synced_cannot_commit(classic_group: ClassicGroup) -> None:
    member_id = join_classic(classic_group)
    error = check_commit(classic_group, committer(member_id, 1))
    assert error is ErrorCode.REBALANCE_IN_PROGRESS
    classic_group.sync(FakeTicket(2), group_members.sync(member_id, 1, {member_id: b"x"}), 0)
    assert check_commit(classic_group, committer(member_id, 1)) is ErrorCode.NONE
    assert check_commit(classic_group, committer(member_id, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert check_commit(classic_group, committer()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_client_that_cannot_send_member_epochs_commits_nothing(
    consumer_group: ConsumerGroup,
) -> None:
    epoch = join_consumer(consumer_group)
    assert check_commit(consumer_group, committer("m", epoch)) is ErrorCode.NONE
    old = check_commit(consumer_group, committer("m", epoch, version=8))
    assert old is ErrorCode.UNSUPPORTED_VERSION


def test_offsets_in_a_transaction_are_taken_from_members_of_this_epoch(
    consumer_group: ConsumerGroup,
) -> None:
    def check(member_id: str, epoch: int) -> ErrorCode:
        return check_transactional_commit(consumer_group, committer(member_id, epoch))

    assert check("gone", -1) is ErrorCode.NONE, "the group has no members"
    epoch = join_consumer(consumer_group)
    assert check("m", epoch) is ErrorCode.NONE
    assert check("m", epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("m", -1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    # Before KIP-447 a producer could not say for whom it commits; its transaction fences it.
    assert check("", -1) is ErrorCode.NONE


def test_only_who_claims_to_be_a_member_has_to_be_one_to_fetch(
    consumer_group: ConsumerGroup, classic_group: ClassicGroup
) -> None:
    epoch = join_consumer(consumer_group)
    assert check_fetch(consumer_group, None, -1) is ErrorCode.NONE
    assert check_fetch(consumer_group, "m", epoch) is ErrorCode.NONE
    assert check_fetch(consumer_group, "m", epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check_fetch(consumer_group, "other", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check_fetch(classic_group, "other", 7) is ErrorCode.NONE
