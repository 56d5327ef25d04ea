"""States of share partitions, on whichever broker they are coordinated."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.cluster.image import ClusterImage
from ottla.coordinator.runtime.decision import Ticket
from ottla.coordinator.runtime.routing import coordinated_elsewhere
from ottla.coordinator.share.coordinator import ShareCoordinator
from ottla.coordinator.share.state_calls import (
    Delete,
    Initialize,
    Read,
    StateCall,
    StateResult,
    Summarize,
)
from ottla.coordinator.share.state_messages import Addressed
from ottla.errors import ApiError, CoordinatorNotAvailable, ErrorCode, NotCoordinator
from ottla.model import BrokerId, Offset
from ottla.queues.share_state import SharePartitionKey, StateRead, StateSummary

if TYPE_CHECKING:  # a broker without peers does not need what a client needs
    from ottla.coordinator.share.peer_states import PeerShareStates

_TRIES: Final = 100  # while a coordinator is elected, or its topic is created or read
_PAUSE_S: Final = 0.1
PASSING: Final = frozenset(  # errors after which a call that may be repeated is
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class ShareStateRouter:
    """The share coordinators of the cluster: straight to the shard that is led here, or to a peer.

    `peers` sends to those of other brokers.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        coordinator: ShareCoordinator,
        image: Callable[[], ClusterImage],
        peers: Callable[[], "PeerShareStates"],
    ) -> None:
        self._broker_id = broker_id
        self._here = coordinator
        self._image = image
        self._peers = peers

    def submit(self, call: StateCall, ticket: Ticket[Any]) -> None:
        """Have a call decided once; the ticket gets its result when that is committed, or an error.

        The result may be an error as well: the call's refusal.
        """
        try:
            key = str(call.key)
            found = coordinated_elsewhere(self._here, key, self._image(), self._broker_id)
            if found is None:
                self._here.submit(key, ticket, call.decide)
                return
            broker, partition = found
            begun = self._peers().begin(broker, Addressed(call, partition.leader_epoch))
            begun.add_done_callback(lambda result: ticket.deliver(_of(result)))
        except ApiError as refused:
            ticket.fail(refused)

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start: Offset) -> None:
        """Begin a state; the first call creates the coordinators' topic."""
        await self._ask(Initialize(key, state_epoch, start), creates=True)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateRead:
        result = await self._ask(Read(key, leader_epoch))
        assert isinstance(result, StateRead), f"{key}: a read without a state"
        return result

    async def delete(self, key: SharePartitionKey) -> None:
        await self._ask(Delete(key))

    async def summarize(self, key: SharePartitionKey) -> StateSummary:
        result = await self._ask(Summarize(key))
        assert isinstance(result, StateSummary), f"{key}: a summary without a state"
        return result

    async def _ask(self, call: StateCall, *, creates: bool = False) -> StateResult:
        """The result of a call that may be repeated; raises the ApiError that refuses it."""
        problem: ApiError | None = None
        for _ in range(_TRIES):
            try:
                if creates:
                    await self._here.find(str(call.key))
                result = await self.ask_once(call)
            except ApiError as refused:
                result = refused
            if not isinstance(result, ApiError):
                return result
            if result.code not in PASSING:
                raise result
            problem = result
            await asyncio.sleep(_PAUSE_S)
        raise CoordinatorNotAvailable(f"the state of {call.key} cannot be used now: {problem}")

    async def ask_once(self, call: StateCall) -> StateResult:
        """The result of a call, or the error that refuses it."""
        result: asyncio.Future[StateResult] = asyncio.get_running_loop().create_future()

        def settle(value: StateResult) -> None:
            if not result.done():  # else its caller has gone
                result.set_result(value)

        self.submit(call, CallTicket(settle))
        return await result


class CallTicket(Ticket[Any]):
    """A ticket whose response goes to a callback."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[StateResult], None]) -> None:
        self._done = done

    def deliver(self, value: StateResult) -> None:
        self._done(value)

    def fail(self, error: ApiError) -> None:
        self._done(error)


def _of(result: "asyncio.Future[StateResult]") -> StateResult:
    """The result of a call to a peer; the error if there is none."""
    if result.cancelled():
        return NotCoordinator("this broker is stopping")
    problem = result.exception()
    if problem is None:
        return result.result()
    if isinstance(problem, ApiError):
        return problem
    raise problem
