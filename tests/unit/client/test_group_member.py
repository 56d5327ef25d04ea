"""A member that joins, stays, is thrown out and leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fakes.answering_broker import OneTopic
from fakes.loopback import until
from fakes.scripted_coordinator import MEMBER_ID, ScriptedCoordinator
from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, Refused
from ottla.client.group_member import GroupMember, MemberTimes
from ottla.client.group_offsets import Membership
from ottla.errors import ErrorCode
from ottla.model import Offset, TopicPartition
from ottla.protocol.api import ApiKey

TP = TopicPartition("orders", 0)
BOTH = {TP, TopicPartition("orders", 1)}
HASTE = MemberTimes(session_ms=500, rebalance_ms=500, heartbeat_ms=5, metadata_ms=5)
CALM = MemberTimes(heartbeat_ms=60_000)
PATIENCE_S = 10

Scenario = Callable[[GroupMember, ScriptedCoordinator], Awaitable[None]]


def with_member(
    scenario: Scenario, coordinator: ScriptedCoordinator, times: MemberTimes = CALM
) -> None:
    async def run() -> None:
        async with coordinator.broker, asyncio.timeout(PATIENCE_S):
            coordinator.topic.endpoint = coordinator.broker.endpoint
            async with Client([coordinator.broker.endpoint], timeout_s=1) as client:
                member = GroupMember(client, "g", ["orders"], times)
                await scenario(member, coordinator)
                await member.leave()

    asyncio.run(run())


def test_a_new_member_fetches_an_id_joins_with_it_and_leads() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        assert member.must_rejoin
        generation = await member.join()
        assert generation.membership == Membership(MEMBER_ID, 1)
        assert generation.partitions == BOTH
        assert not member.must_rejoin
        first, second = coordinator.asked(ApiKey.JOIN_GROUP)
        assert (first.member_id, second.member_id) == ("", MEMBER_ID)
        assert [protocol.name for protocol in second.protocols] == ["range", "roundrobin"]

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.JOIN_GROUP, ErrorCode.MEMBER_ID_REQUIRED)
    with_member(scenario, coordinator)


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_a_coordinator_that_moved_is_looked_for_again(key: ApiKey, code: ErrorCode) -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        assert (await member.join()).partitions == BOTH
        assert len(coordinator.asked(ApiKey.FIND_COORDINATOR)) == 2
        assert len(coordinator.asked(key)) == 2

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(key, code)
    with_member(scenario, coordinator)


def test_the_first_request_for_a_coordinator_may_have_to_be_sent_twice() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        assert (await member.join()).partitions == BOTH

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with_member(scenario, coordinator)


def test_a_connection_that_breaks_while_joining_is_opened_again() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        joining = asyncio.create_task(member.join())
        await until(lambda: bool(coordinator.asked(ApiKey.JOIN_GROUP)))
        coordinator.broker.hang_up()
        assert (await joining).partitions == BOTH

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.JOIN_GROUP, None)
    with_member(scenario, coordinator)


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_an_id_that_nobody_knows_any_more_is_given_up(key: ApiKey) -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        coordinator.will_answer(key, ErrorCode.UNKNOWN_MEMBER_ID)
        await member.join()
        ids = [request.member_id for request in coordinator.asked(ApiKey.JOIN_GROUP)]
        assert ids == ["", MEMBER_ID, ""]

    with_member(scenario, ScriptedCoordinator())


def test_a_rebalance_that_begins_before_the_sync_means_to_join_again() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        generation = await member.join()
        assert generation.membership.generation == 2
        ids = [request.member_id for request in coordinator.asked(ApiKey.JOIN_GROUP)]
        assert ids == ["", MEMBER_ID]

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS)
    with_member(scenario, coordinator)


def test_what_joining_again_cannot_help_is_raised() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        with pytest.raises(Refused, match="group g: its members use other assignors"):
            await member.join()

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.JOIN_GROUP, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    with_member(scenario, coordinator)


def test_a_heartbeat_tells_of_a_rebalance_and_partitions_may_still_be_committed() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        assert await member.wait_rejoin(PATIENCE_S)
        assert member.lost_because is None
        assert await member.commit({TP: Offset(7)})
        (commit,) = coordinator.asked(ApiKey.OFFSET_COMMIT)
        assert (commit.member_id, commit.generation_id_or_member_epoch) == (MEMBER_ID, 1)
        generation = await member.join()
        assert generation.membership == Membership(MEMBER_ID, 2)

    coordinator = ScriptedCoordinator(OneTopic("orders", 2))
    coordinator.will_answer(
        ApiKey.HEARTBEAT, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS
    )
    with_member(scenario, coordinator, HASTE)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_who_is_thrown_out_has_lost_its_partitions(code: ErrorCode) -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        assert await member.wait_rejoin(PATIENCE_S)
        assert isinstance(member.lost_because, Refused)
        assert member.lost_because.code is code
        assert not await member.commit({TP: Offset(7)})
        assert coordinator.asked(ApiKey.OFFSET_COMMIT) == []
        await member.join()
        assert member.lost_because is None

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.HEARTBEAT, code)
    with_member(scenario, coordinator, HASTE)


def test_a_heartbeat_finds_a_coordinator_that_moved() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        await until(lambda: len(coordinator.asked(ApiKey.HEARTBEAT)) >= 3)
        assert len(coordinator.asked(ApiKey.FIND_COORDINATOR)) == 2
        assert not member.must_rejoin

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.HEARTBEAT, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
    with_member(scenario, coordinator, HASTE)


def test_a_coordinator_that_stays_away_for_a_session_has_given_our_partitions_away() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        coordinator.script(ApiKey.HEARTBEAT, lambda request: b"\x00\x00\x00\x01!")
        assert await member.wait_rejoin(PATIENCE_S)
        assert isinstance(member.lost_because, ConnectionLost)

    with_member(scenario, ScriptedCoordinator(), HASTE)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_commit_of_an_earlier_generation_is_refused_and_said_so(code: ErrorCode) -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        assert not await member.commit({TP: Offset(7)})
        assert member.must_rejoin

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.OFFSET_COMMIT, code)
    with_member(scenario, coordinator)


def test_a_commit_finds_a_coordinator_that_moved() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        assert await member.commit({TP: Offset(7)})
        assert len(coordinator.asked(ApiKey.OFFSET_COMMIT)) == 2
        assert len(coordinator.asked(ApiKey.FIND_COORDINATOR)) == 2

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR)
    with_member(scenario, coordinator)


def test_a_leader_notices_that_a_topic_has_grown() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()
        coordinator.topic.partition_count = 3
        assert await member.wait_rejoin(PATIENCE_S)
        assert member.lost_because is None
        assert len((await member.join()).partitions) == 3

    with_member(scenario, ScriptedCoordinator(), HASTE)


def test_leaving_says_goodbye_once() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.leave()
        assert coordinator.asked(ApiKey.LEAVE_GROUP) == []
        await member.join()
        await member.leave()
        await member.leave()
        (goodbye,) = coordinator.asked(ApiKey.LEAVE_GROUP)
        assert [member.member_id for member in goodbye.members] == [MEMBER_ID]

    with_member(scenario, ScriptedCoordinator())


def test_who_gives_up_joining_does_not_wait_behind_its_join() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        joining = asyncio.create_task(member.join())
        await until(lambda: len(coordinator.asked(ApiKey.JOIN_GROUP)) == 2)
        joining.cancel()
        await asyncio.wait([joining])
        before = coordinator.broker.connection_count
        await member.leave()
        assert coordinator.broker.connection_count == before + 1
        assert len(coordinator.asked(ApiKey.LEAVE_GROUP)) == 1

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.JOIN_GROUP, ErrorCode.MEMBER_ID_REQUIRED, None)
    with_member(scenario, coordinator)


def test_a_goodbye_that_nobody_hears_is_no_problem() -> None:
    async def scenario(member: GroupMember, coordinator: ScriptedCoordinator) -> None:
        await member.join()

    coordinator = ScriptedCoordinator()
    coordinator.will_answer(ApiKey.LEAVE_GROUP, None)
    with_member(scenario, coordinator)
