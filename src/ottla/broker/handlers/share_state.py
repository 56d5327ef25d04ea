"""Initialize- (83), Read- (84), Write- (85), Delete- (86) and ReadSummary- (87) ShareGroupState.

Calls of other brokers on states that are coordinated here, in versions 0, 0, 0-1, 0, 0-1. Only
brokers send them: the token of a registration proves it. A request that comes behind a later one of
its sender, or for another epoch of this coordinator, is refused: its sender has given it up, and
may have read the state since.
"""

from collections.abc import Awaitable, Sequence

from ottla.broker.deferred import Deferred
from ottla.broker.services import RequestContext, Services
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.runtime.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from ottla.coordinator.share.state_calls import StateResult
from ottla.coordinator.share.state_messages import (
    Addressed,
    StateRequest,
    StateResponse,
    calls_of,
    refusal_of,
    response_of,
)
from ottla.errors import ApiError, InvalidRequest, NotCoordinator
from ottla.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ShardQuery,
    ShardResult,
    StateOfShard,
    WriteShareGroupStateRequest,
)
from ottla.queues.share_state import SharePartitionKey

_Results = list[tuple[SharePartitionKey, StateResult]]
_Response = StateResponse | Deferred[_Results, StateResponse]


class _StateResponse(Deferred[_Results, StateResponse]):
    """A response that later requests of its connection do not wait for."""

    __slots__ = ("_request",)
    is_barrier = False

    def __init__(self, request: StateRequest) -> None:
        super().__init__()
        self._request = request

    def build(self, value: _Results) -> StateResponse:
        return response_of(self._request, value)

    def refuse(self, error: ApiError) -> StateResponse:
        raise AssertionError("an exchange is refused call by call") from error


class _ResultTicket(Ticket[StateResult]):
    """A ticket of one call; its result goes to the exchange, with the call's position."""

    __slots__ = ("_exchange", "_position")

    def __init__(self, exchange: "_Exchange", position: int) -> None:
        self._exchange = exchange
        self._position = position

    def deliver(self, value: StateResult) -> None:
        self._exchange.note(self._position, value)

    def fail(self, error: ApiError) -> None:
        self._exchange.note(self._position, error)


class _Exchange:
    """The calls of one request, from their decisions to the response."""

    def __init__(self, request: StateRequest, calls: Sequence[Addressed]) -> None:
        self._calls = calls
        self._results: dict[int, StateResult] = {}
        self._response = _StateResponse(request)

    def begin(self, services: Services) -> _Response:
        """Have all decided, in their order; the response, or the promise of one."""
        for position, (call, epoch) in enumerate(self._calls):
            try:
                _check_epoch(services, call.key, epoch)
                ticket = _ResultTicket(self, position)
                services.share.submit(str(call.key), ticket, call.decide)
            except ApiError as refused:
                self.note(position, refused)
        if not self._calls:
            self._response.deliver([])
        return self._response.message() if self._response.is_ready else self._response

    def note(self, position: int, result: StateResult) -> None:
        self._results[position] = result
        if len(self._results) == len(self._calls):
            self._response.deliver(
                [(call.key, self._results[number]) for number, (call, _) in enumerate(self._calls)]
            )


def _check_epoch(services: Services, key: SharePartitionKey, epoch: int) -> None:
    """Refuse a call that was sent to this broker when it led in another epoch."""
    tp = services.share.partition_of(str(key))
    partition = services.replicas.leaders.get(tp)
    if partition is None or epoch not in {-1, partition.leader_epoch}:
        raise NotCoordinator(f"this broker does not lead {tp} in epoch {epoch}")


def _decide(services: Services, request: StateRequest) -> _Response:
    """Check the sender of a request, and have its calls decided."""
    try:
        services.share_senders.check(request.broker_token, request.sequence)
        calls = calls_of(request)
    except ApiError as refused:
        return refusal_of(request, refused)
    return _Exchange(request, calls).begin(services)


class InitializeShareGroupState:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: InitializeShareGroupStateRequest, context: RequestContext
    ) -> _Response:
        return _decide(self._services, request)


class ReadShareGroupState:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(self, request: ReadShareGroupStateRequest, context: RequestContext) -> _Response:
        return _decide(self._services, request)


class WriteShareGroupState:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(self, request: WriteShareGroupStateRequest, context: RequestContext) -> _Response:
        return _decide(self._services, request)


class DeleteShareGroupState:
    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(self, request: DeleteShareGroupStateRequest, context: RequestContext) -> _Response:
        return _decide(self._services, request)


class ReadShareGroupStateSummary:
    """Start offsets; and, in tagged fields, what brokers ask of whole shards."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def __call__(
        self, request: ReadShareGroupStateSummaryRequest, context: RequestContext
    ) -> _Response | Awaitable[StateResponse]:
        if request.queries or request.archiving:
            return self._respond(request)
        return _decide(self._services, request)

    async def _respond(
        self, request: ReadShareGroupStateSummaryRequest
    ) -> ReadShareGroupStateSummaryResponse:
        try:
            self._services.share_senders.check_token(request.broker_token)
        except ApiError as refused:
            shards = [_refusal(refused) for _ in request.queries]
            return ReadShareGroupStateSummaryResponse(shards=shards)
        self._services.share_partitions.resume(
            SharePartitionKey(one.group_id, one.topic_id, one.partition)
            for one in request.archiving
        )
        return ReadShareGroupStateSummaryResponse(
            shards=[await self._ask(query) for query in request.queries]
        )

    async def _ask(self, query: ShardQuery) -> ShardResult:
        shards = self._services.shard_queries
        try:
            if query.coordinator_topic == OFFSETS_TOPIC:
                groups = await shards.readers_here(query.index, query.topic_name, query.topic_id)
                return ShardResult(groups=groups)
            if query.coordinator_topic == SHARE_STATE_TOPIC:
                starts = await shards.starts_here(query.index, query.topic_id)
                return ShardResult(
                    states=[
                        StateOfShard(group_id=group_id, partition=index, start_offset=start)
                        for (group_id, index), start in starts.items()
                    ]
                )
            raise InvalidRequest(f"no coordinator uses {query.coordinator_topic}")
        except ApiError as refused:
            return _refusal(refused)


def _refusal(refused: ApiError) -> ShardResult:
    return ShardResult(error_code=refused.code, error_message=str(refused))
