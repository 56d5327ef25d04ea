"""Requests of other brokers on states of share partitions: who may send them, what is outdated."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fakes.handled import Handled, handle
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from ottla.coordinator.share.state_calls import (
    Delete,
    Initialize,
    Read,
    StateCall,
    StateResult,
    Summarize,
    Write,
)
from ottla.coordinator.share.state_messages import Addressed, request_of, results_of
from ottla.errors import ApiError, ErrorCode
from ottla.model import NO_UUID, Offset, ProducerId, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.share_state import (
    ReadShareGroupStateSummaryRequest,
    ShardQuery,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteTopic,
)
from ottla.protocol.messages.share_state import (
    StateBatch as BatchMessage,
)
from ottla.queues.share_state import (
    NO_START,
    Cause,
    DeliveryState,
    Sender,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateSummary,
    StateWrite,
)

TOPIC_ID = Uuid(bytes(range(16)))
KEY = SharePartitionKey("g", TOPIC_ID, 0)
KEYS = {
    Initialize: ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    Read: ApiKey.READ_SHARE_GROUP_STATE,
    Write: ApiKey.WRITE_SHARE_GROUP_STATE,
    Delete: ApiKey.DELETE_SHARE_GROUP_STATE,
    Summarize: ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
ONE = Initialize(KEY, 1, Offset(0))
FINISHED = StateBatch(Offset(0), Offset(4), DeliveryState.ACKNOWLEDGED, 1)
WAITING = StateBatch(Offset(5), Offset(5), DeliveryState.AVAILABLE, 2, not_before_ms=77)
DYING = StateBatch(
    Offset(6), Offset(7), DeliveryState.ARCHIVING, 5, cause=Cause.REJECTED, is_sending=True
)
SENDER = Sender(ProducerId(9), 4, Uuid(bytes([7] * 16)), 2, 1234)


class Peer:
    """Another broker that sends calls to the handled one; `sequence` is that of its next round."""

    def __init__(self, handled: Handled) -> None:
        self.handled = handled
        (registered,) = handled.services.state.image.registered.values()
        self.token = Uuid(registered.token)
        self.sequence = 1

    async def send(
        self, call: StateCall, *, token: Uuid | None = None, sequence: int = 0, epoch: int = 0
    ) -> StateResult:
        if not sequence:
            sequence, self.sequence = self.sequence, self.sequence + 1
        used = self.token if token is None else token
        request, _ = request_of([Addressed(call, epoch)], used, sequence)
        response = await self.handled.call(KEYS[type(call)], request, 0)
        (result,) = results_of(call.key.group_id, response).values()
        return result

    async def code(self, call: StateCall, **details: Any) -> ErrorCode:
        result = await self.send(call, **details)
        return result.code if isinstance(result, ApiError) else ErrorCode.NONE


def with_peer(tmp_path: Path, scenario: Callable[[Peer], Awaitable[None]]) -> None:
    async def run(handled: Handled) -> None:
        await handled.find_coordinators()
        peer = Peer(handled)
        await handled.services.share_states.initialize(
            SharePartitionKey("other", TOPIC_ID, 0), 1, NO_START
        )
        await scenario(peer)

    handle(tmp_path, run, share_coordinator_state_topic_num_partitions="1")


def write(*batches: StateBatch, state: int = 1, leader: int = 5, sender: Any = None) -> Write:
    return Write(KEY, state, leader, StateWrite(Offset(0), 3, batches, sender))


def test_a_leader_reads_what_another_has_written(tmp_path: Path) -> None:
    """Waits, causes and the sender of dead letters cross brokers in tagged fields."""

    async def scenario(peer: Peer) -> None:
        assert await peer.send(ONE) is None
        assert await peer.send(Read(KEY, 5)) == StateRead(1, Offset(0), ())
        assert await peer.send(write(FINISHED, WAITING, DYING, sender=SENDER)) is None
        read = await peer.send(Read(KEY, 6))
        assert read == StateRead(1, Offset(0), (FINISHED, WAITING, DYING), SENDER)
        summary = await peer.send(Summarize(KEY))
        assert summary == StateSummary(1, 6, Offset(0), 3)
        assert await peer.send(Delete(KEY)) is None
        assert await peer.code(Summarize(KEY)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_peer(tmp_path, scenario)


def test_leaders_and_states_that_were_replaced_are_fenced(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(ONE)
        await peer.send(Read(KEY, 5))
        assert await peer.code(Read(KEY, 4)) is ErrorCode.FENCED_LEADER_EPOCH
        assert await peer.code(write(FINISHED, leader=4)) is ErrorCode.FENCED_LEADER_EPOCH
        assert await peer.send(Initialize(KEY, 2, Offset(9))) is None
        assert await peer.code(write(FINISHED, state=1)) is ErrorCode.FENCED_STATE_EPOCH
        assert await peer.code(Initialize(KEY, 1, Offset(0))) is ErrorCode.FENCED_STATE_EPOCH
        assert await peer.send(Read(KEY, 5)) == StateRead(2, Offset(9), ())

    with_peer(tmp_path, scenario)


def test_only_brokers_call(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        calls: list[StateCall] = [ONE, Read(KEY, 9), write(FINISHED), Delete(KEY), Summarize(KEY)]
        for call in calls:
            for token in (NO_UUID, Uuid(bytes(range(16)))):
                code = await peer.code(call, token=token)
                assert code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await peer.code(Summarize(KEY)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_peer(tmp_path, scenario)


def test_a_call_behind_a_later_one_changes_nothing(tmp_path: Path) -> None:
    """Its sender gave it up and has read the state again, in the same leader epoch."""

    async def scenario(peer: Peer) -> None:
        await peer.send(ONE, sequence=1)
        await peer.send(Read(KEY, 5), sequence=2)
        await peer.send(Read(KEY, 5), sequence=4)
        late = await peer.code(write(FINISHED), sequence=3)
        assert late is ErrorCode.INVALID_REQUEST
        assert await peer.send(Read(KEY, 5), sequence=5) == StateRead(1, Offset(0), ())
        assert await peer.code(write(FINISHED), sequence=5) is ErrorCode.NONE, "of the same round"

    with_peer(tmp_path, scenario)


def test_a_call_for_another_epoch_of_the_coordinator_changes_nothing(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(ONE)
        assert await peer.code(write(FINISHED), epoch=3) is ErrorCode.NOT_COORDINATOR
        assert await peer.send(Read(KEY, 5)) == StateRead(1, Offset(0), ())

    with_peer(tmp_path, scenario)


def test_a_state_that_does_not_exist_as_such_is_refused(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(ONE)
        batch = BatchMessage(first_offset=0, last_offset=1, delivery_state=9, delivery_count=1)
        partition = WritePartition(partition=0, state_epoch=1, leader_epoch=5, start_offset=0)
        partition.state_batches.append(batch)
        request = WriteShareGroupStateRequest(
            group_id="g",
            topics=[WriteTopic(topic_id=TOPIC_ID, partitions=[partition])],
            broker_token=peer.token,
            sequence=10,
        )
        response = await peer.handled.call(ApiKey.WRITE_SHARE_GROUP_STATE, request, 1)
        (result,) = response.results[0].partitions
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert "9" in result.error_message

    with_peer(tmp_path, scenario)


def test_brokers_ask_whole_shards(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(Initialize(KEY, 1, Offset(3)))
        queries = [
            ShardQuery(coordinator_topic=topic, index=index, topic_name="t", topic_id=TOPIC_ID)
            for topic, index in (
                (SHARE_STATE_TOPIC, 0),
                (OFFSETS_TOPIC, 0),
                (SHARE_STATE_TOPIC, 1),
                ("orders", 0),
            )
        ]

        async def ask(token: Uuid) -> Any:
            request = ReadShareGroupStateSummaryRequest(
                group_id="", broker_token=token, queries=queries
            )
            return await peer.handled.call(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, request, 1)

        states, groups, absent, foreign = (await ask(peer.token)).shards
        found = {(one.group_id, one.partition): one.start_offset for one in states.states}
        assert found == {("g", 0): 3, ("other", 0): -1}
        assert (groups.error_code, groups.groups) == (0, [])
        assert absent.error_code == ErrorCode.NOT_COORDINATOR
        assert foreign.error_code == ErrorCode.INVALID_REQUEST
        refused = {one.error_code for one in (await ask(NO_UUID)).shards}
        assert refused == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}

    with_peer(tmp_path, scenario)
