"""Calls on states that another broker coordinates, over real sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from fakes.answering_broker import AnsweringBroker
from fakes.cluster_images import alive, broker, with_topic
from fakes.tickets import FakeTicket
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.coordinator.share.coordinator import ShareCoordinator
from ottla.coordinator.share.peer_states import PeerShareStates
from ottla.coordinator.share.routing import ShareStateRouter
from ottla.coordinator.share.share_states import ShareStates
from ottla.coordinator.share.state_calls import Read, StateCall, StateResult, Summarize, Write
from ottla.coordinator.share.state_messages import calls_of, response_of
from ottla.errors import ApiError, ErrorCode, NotCoordinator, UnknownTopicOrPartition
from ottla.model import BrokerId, Offset, TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.share_state import WriteShareGroupStateResponse
from ottla.queues.share_state import (
    DeliveryState,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateWrite,
)
from ottla.replication.peers import Peers

HERE, THERE = BrokerId(1), BrokerId(2)
TOKEN = Uuid(bytes(range(16)))
KEYS = [SharePartitionKey("g", Uuid(bytes([9] * 16)), index) for index in range(3)]
KEY = KEYS[0]
SHARD = TopicPartition("orders", 0)  # in the place of a partition of the coordinators' topic
CALLS = (
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
)


class Coordinator:
    """Keeps the states of the other broker, or of this one if `leads_here`."""

    def __init__(self) -> None:
        self.states = ShareStates()
        self.leads_here = False
        self.shard = SHARD

    def decide(self, call: StateCall) -> StateResult:
        ((_, result),) = call.decide(self.states, FakeTicket(1), 0).responses
        return cast("StateResult", result)

    def respond(self, request: Any) -> Any:
        return response_of(
            request, [(call.key, self.decide(call)) for call, _ in calls_of(request)]
        )

    # As the router calls it

    def partition_of(self, _: str) -> TopicPartition:
        return self.shard

    def leads(self, _: TopicPartition) -> bool:
        return self.leads_here

    def submit(self, _: str, ticket: Any, decide: Any) -> None:
        for one, value in decide(self.states, ticket, 0).responses:
            one.deliver(value)

    async def find(self, _: str) -> None:
        """The topic exists."""


class Pair:
    """This broker's router, and the other broker with its coordinator."""

    def __init__(self, there: AnsweringBroker, coordinator: Coordinator, peers: Peers) -> None:
        self.there = there
        self.coordinator = coordinator
        self.image = ClusterImage()
        states = PeerShareStates(peers)
        self.router = ShareStateRouter(
            HERE, cast("ShareCoordinator", coordinator), lambda: self.image, lambda: states
        )

    def requests(self, key: ApiKey) -> list[Any]:
        return [request for asked, _, request in self.there.asked if asked is key]

    async def write(self, *writes: Write) -> list[StateResult]:
        return list(await asyncio.gather(*(self.router.ask_once(one) for one in writes)))


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    async def main() -> None:
        coordinator = Coordinator()
        there = AnsweringBroker(dict.fromkeys(CALLS, coordinator.respond))
        async with asyncio.timeout(60), there:
            ours = replace(broker(HERE), token=TOKEN)
            other = broker(THERE, there.endpoint.port, host=there.endpoint.host)
            image = ClusterImage().apply([*alive(ours, 1), *alive(other, 1)], Revision(1))
            image = with_topic(image, (2, 1))
            peers = Peers(HERE, lambda: image, _fail)
            pair = Pair(there, coordinator, peers)
            pair.image = image
            try:
                await scenario(pair)
            finally:
                peers.close()

    asyncio.run(main())


def _fail(problem: BaseException) -> None:
    raise AssertionError("a defect") from problem


def accept(key: SharePartitionKey, offset: int, *, leader: int = 5, state: int = 1) -> Write:
    batch = StateBatch(Offset(offset), Offset(offset), DeliveryState.ACKNOWLEDGED, 1)
    return Write(key, state, leader, StateWrite(Offset(0), 1, (batch,)))


async def begun(pair: Pair) -> None:
    for key in KEYS:
        await pair.router.initialize(key, 1, Offset(0))
        await pair.router.read(key, 5)


def test_a_state_is_begun_read_and_deleted_elsewhere() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.router.initialize(KEY, 1, Offset(7))
        assert await pair.router.read(KEY, 5) == StateRead(1, Offset(7), ())
        assert (await pair.router.summarize(KEY)).leader_epoch == 5
        await pair.router.delete(KEY)
        with pytest.raises(ApiError) as refused:
            await pair.router.read(KEY, 5)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_writes_that_come_together_are_one_and_numbered_and_name_the_epoch() -> None:
    async def scenario(pair: Pair) -> None:
        await begun(pair)
        pair.there.asked.clear()
        writes = [accept(KEY, 0), accept(KEYS[1], 0), accept(KEY, 1), accept(KEY, 3)]
        assert await pair.write(*writes) == [None] * 4
        (request,) = pair.requests(ApiKey.WRITE_SHARE_GROUP_STATE)
        assert request.broker_token == TOKEN
        assert [len(one.state_batches) for one in request.topics[0].partitions] == [3, 1]
        epoch = pair.image.topics["orders"].partitions[0].leader_epoch
        assert {one.coordinator_epoch for one in request.topics[0].partitions} == {epoch}
        found = pair.coordinator.states.states[KEY].snapshot.batches
        assert [(batch.first, batch.last) for batch in found] == [(0, 1), (3, 3)]
        await pair.router.read(KEY, 5)
        (later,) = pair.requests(ApiKey.READ_SHARE_GROUP_STATE)
        assert later.sequence > request.sequence > 0

    run(scenario)


def test_each_write_of_another_epoch_has_its_own_result() -> None:
    async def scenario(pair: Pair) -> None:
        await begun(pair)
        old, new = accept(KEY, 0, leader=4), accept(KEY, 1, leader=6)
        refused, done = await pair.write(old, new)
        assert isinstance(refused, ApiError)
        assert refused.code is ErrorCode.FENCED_LEADER_EPOCH
        assert done is None

    run(scenario)


def test_calls_on_one_state_keep_their_order() -> None:
    async def scenario(pair: Pair) -> None:
        await begun(pair)
        calls: list[StateCall] = [accept(KEY, 0), Read(KEY, 5), accept(KEY, 1), Read(KEY, 5)]
        results = await asyncio.gather(*(pair.router.ask_once(call) for call in calls))
        first, second = results[1], results[3]
        assert isinstance(first, StateRead)
        assert isinstance(second, StateRead)
        assert [(one.first, one.last) for one in first.batches] == [(0, 0)]
        assert [(one.first, one.last) for one in second.batches] == [(0, 1)]

    run(scenario)


def test_a_write_without_a_response_is_not_repeated_and_a_read_is() -> None:
    async def scenario(pair: Pair) -> None:
        await begun(pair)
        scripts, respond = pair.there.scripts, pair.coordinator.respond
        scripts[ApiKey.WRITE_SHARE_GROUP_STATE] = lambda _: pair.there.hang_up()
        (result,) = await pair.write(accept(KEY, 0))
        assert isinstance(result, ApiError)
        assert result.code is ErrorCode.REQUEST_TIMED_OUT
        assert len(pair.requests(ApiKey.WRITE_SHARE_GROUP_STATE)) == 1
        before = len(pair.requests(ApiKey.READ_SHARE_GROUP_STATE))

        def hang_up_once(_: object) -> None:
            scripts[ApiKey.READ_SHARE_GROUP_STATE] = respond
            pair.there.hang_up()

        scripts[ApiKey.READ_SHARE_GROUP_STATE] = hang_up_once
        assert await pair.router.read(KEY, 5) == StateRead(1, Offset(0), ())
        assert len(pair.requests(ApiKey.READ_SHARE_GROUP_STATE)) == before + 2

    run(scenario)


def test_a_coordinator_that_does_not_name_a_state_has_not_decided() -> None:
    async def scenario(pair: Pair) -> None:
        pair.there.scripts[ApiKey.WRITE_SHARE_GROUP_STATE] = lambda _: (
            WriteShareGroupStateResponse()
        )
        (result,) = await pair.write(accept(KEY, 0))
        assert isinstance(result, NotCoordinator)

    run(scenario)


def test_a_state_without_coordinator_is_an_error() -> None:
    async def scenario(pair: Pair) -> None:
        pair.coordinator.shard = TopicPartition("gone", 0)
        (result,) = await pair.write(accept(KEY, 0))
        assert isinstance(result, NotCoordinator)
        assert pair.there.asked == []

    run(scenario)


def test_the_shard_of_this_broker_is_called_directly() -> None:
    async def scenario(pair: Pair) -> None:
        pair.coordinator.leads_here = True
        await begun(pair)
        assert await pair.write(accept(KEY, 0)) == [None]
        assert isinstance(
            await pair.router.ask_once(Summarize(KEYS[0]._replace(group_id="h"))),
            UnknownTopicOrPartition,
        )
        assert pair.there.asked == []

    run(scenario)
