"""Calls on states of share partitions as Kafka's requests 83 to 87, and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.coordinator.share.state_batches import batch_messages, batches_of
from ottla.coordinator.share.state_calls import (
    Delete,
    Initialize,
    Read,
    StateCall,
    StateResult,
    Summarize,
    Write,
)
from ottla.errors import ApiError, InvalidRequest, PeerError
from ottla.model import Offset, ProducerId, Uuid
from ottla.protocol.messages import share_state as wire
from ottla.queues.share_state import (
    Sender,
    SharePartitionKey,
    StateBatch,
    StateRead,
    StateSummary,
    StateWrite,
)

StateRequest = (
    wire.InitializeShareGroupStateRequest
    | wire.ReadShareGroupStateRequest
    | wire.WriteShareGroupStateRequest
    | wire.DeleteShareGroupStateRequest
    | wire.ReadShareGroupStateSummaryRequest
)
StateResponse = (
    wire.InitializeShareGroupStateResponse
    | wire.ReadShareGroupStateResponse
    | wire.WriteShareGroupStateResponse
    | wire.DeleteShareGroupStateResponse
    | wire.ReadShareGroupStateSummaryResponse
)


class Addressed(NamedTuple):
    """A call, and the leader epoch in which its coordinator is expected to serve; -1 for any."""

    call: StateCall
    coordinator_epoch: int


class _Kind(NamedTuple):
    request: type[Any]
    response: type[Any]
    topic: type[Any]
    result: type[Any]
    topic_result: type[Any]


_KINDS: Final[Mapping[type[Any], _Kind]] = {
    Initialize: _Kind(
        wire.InitializeShareGroupStateRequest,
        wire.InitializeShareGroupStateResponse,
        wire.InitializeTopic,
        wire.PartitionResult,
        wire.TopicResult,
    ),
    Read: _Kind(
        wire.ReadShareGroupStateRequest,
        wire.ReadShareGroupStateResponse,
        wire.ReadTopic,
        wire.ReadPartitionResult,
        wire.ReadTopicResult,
    ),
    Write: _Kind(
        wire.WriteShareGroupStateRequest,
        wire.WriteShareGroupStateResponse,
        wire.WriteTopic,
        wire.PartitionResult,
        wire.TopicResult,
    ),
    Delete: _Kind(
        wire.DeleteShareGroupStateRequest,
        wire.DeleteShareGroupStateResponse,
        wire.DeleteTopic,
        wire.PartitionResult,
        wire.TopicResult,
    ),
    Summarize: _Kind(
        wire.ReadShareGroupStateSummaryRequest,
        wire.ReadShareGroupStateSummaryResponse,
        wire.ReadTopic,
        wire.SummaryPartitionResult,
        wire.SummaryTopicResult,
    ),
}
_CALLS: Final = {kind.request: call for call, kind in _KINDS.items()}

# Requests


def request_of(calls: Sequence[Addressed], token: Uuid, sequence: int) -> tuple[object, type[Any]]:
    """The request with calls of one kind on states of one group, and its response's class."""
    kind = _KINDS[type(calls[0].call)]
    topics: dict[Uuid, Any] = {}
    for call, epoch in calls:
        topic = topics.get(call.key.topic_id)
        if topic is None:
            topic = topics[call.key.topic_id] = kind.topic(topic_id=call.key.topic_id)
        topic.partitions.append(_partition(call, epoch))
    request = kind.request(
        group_id=calls[0].call.key.group_id,
        topics=list(topics.values()),
        broker_token=token,
        sequence=sequence,
    )
    return request, kind.response


def _partition(call: StateCall, epoch: int) -> object:
    index = call.key.partition
    match call:
        case Initialize(_, state_epoch, start):
            return wire.InitializePartition(
                partition=index,
                state_epoch=state_epoch,
                start_offset=start,
                coordinator_epoch=epoch,
            )
        case Write(_, state_epoch, leader_epoch, change):
            return wire.WritePartition(
                partition=index,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=change.start_offset,
                delivery_complete_count=change.complete_count,
                state_batches=batch_messages(change.batches),
                coordinator_epoch=epoch,
                sender=_sender_message(change.sender),
            )
        case Delete():
            return wire.DeletePartition(partition=index, coordinator_epoch=epoch)
        case Read(_, leader_epoch):
            return wire.ReadPartition(
                partition=index, leader_epoch=leader_epoch, coordinator_epoch=epoch
            )
        case Summarize():
            return wire.ReadPartition(partition=index, leader_epoch=-1, coordinator_epoch=epoch)


def calls_of(request: StateRequest) -> list[Addressed]:
    """The calls of a request; raises InvalidRequest."""
    kind: type[Any] = _CALLS[type(request)]
    return [
        Addressed(
            _call(kind, SharePartitionKey(request.group_id, topic.topic_id, one.partition), one),
            one.coordinator_epoch,
        )
        for topic in request.topics
        for one in topic.partitions
    ]


def _call(kind: type[Any], key: SharePartitionKey, one: Any) -> StateCall:
    if kind is Initialize:
        return Initialize(key, one.state_epoch, Offset(one.start_offset))
    if kind is Read:
        return Read(key, one.leader_epoch)
    if kind is Write:
        change = StateWrite(
            Offset(one.start_offset),
            one.delivery_complete_count,
            _batches(one.state_batches),
            _sender(one.sender),
        )
        return Write(key, one.state_epoch, one.leader_epoch, change)
    return Delete(key) if kind is Delete else Summarize(key)


# Responses


def refusal_of(request: StateRequest, refused: ApiError) -> StateResponse:
    """The response to a request of which nothing is done."""
    keys = [
        SharePartitionKey(request.group_id, topic.topic_id, one.partition)
        for topic in request.topics
        for one in topic.partitions
    ]
    return response_of(request, [(key, refused) for key in keys])


def response_of(
    request: StateRequest, results: Iterable[tuple[SharePartitionKey, StateResult]]
) -> StateResponse:
    """The response to a request, with the result for each key."""
    kind = _KINDS[_CALLS[type(request)]]
    topics: dict[Uuid, Any] = {}
    for key, result in results:
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = kind.topic_result(topic_id=key.topic_id)
        topic.partitions.append(_result_message(kind, key.partition, result))
    response: StateResponse = kind.response(results=list(topics.values()))
    return response


def _result_message(kind: _Kind, index: int, result: StateResult) -> Any:
    message = kind.result(partition=index)
    match result:
        case ApiError():
            message.error_code, message.error_message = result.code, str(result)
        case StateRead(state_epoch, start, batches, sender):
            message.state_epoch, message.start_offset = state_epoch, start
            message.state_batches = batch_messages(batches)
            message.sender = _sender_message(sender)
        case StateSummary(state_epoch, leader_epoch, start, complete_count):
            message.state_epoch, message.leader_epoch = state_epoch, leader_epoch
            message.start_offset = start
            message.delivery_complete_count = complete_count
        case None:
            pass
    return message


def results_of(group_id: str, response: Any) -> dict[SharePartitionKey, StateResult]:
    """The result of each call in a response."""
    return {
        SharePartitionKey(group_id, topic.topic_id, one.partition): _result(one)
        for topic in response.results
        for one in topic.partitions
    }


def _result(one: Any) -> StateResult:
    if one.error_code:
        return PeerError(one.error_code, one.error_message or "")
    if isinstance(one, wire.ReadPartitionResult):
        return StateRead(
            one.state_epoch,
            Offset(one.start_offset),
            _batches(one.state_batches),
            _sender(one.sender),
        )
    if isinstance(one, wire.SummaryPartitionResult):
        return StateSummary(
            one.state_epoch,
            one.leader_epoch,
            Offset(one.start_offset),
            one.delivery_complete_count,
        )
    return None


# Parts of both


def _batches(messages: Iterable[wire.StateBatch]) -> tuple[StateBatch, ...]:
    try:
        return batches_of(messages)
    except ValueError as problem:
        raise InvalidRequest(f"a batch of a state cannot be read: {problem}") from None


def _sender_message(sender: Sender | None) -> wire.StateSender:
    if sender is None:
        return wire.StateSender()
    return wire.StateSender(
        producer_id=sender.producer_id,
        sequence=sender.sequence,
        topic_id=sender.topic_id,
        partition=sender.partition,
        begun_ms=sender.begun_ms,
    )


def _sender(message: wire.StateSender) -> Sender | None:
    if message.producer_id < 0:
        return None
    return Sender(
        ProducerId(message.producer_id),
        message.sequence,
        message.topic_id,
        message.partition,
        message.begun_ms,
    )
