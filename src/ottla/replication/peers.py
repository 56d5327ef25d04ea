"""Requests to other brokers: a connection to each, and one request of a kind under way there."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ottla.client.connection import Connection
from ottla.client.errors import ClientError, Unreachable
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import BrokerImage
from ottla.errors import ApiError, RequestTimedOut
from ottla.model import BrokerId, Endpoint

CONNECT_S: Final = 2.0

Item = TypeVar("Item")
Result = TypeVar("Result")
Response = TypeVar("Response")
Exchange = Callable[[BrokerId, Sequence[Item]], Awaitable[Sequence[Result | ApiError]]]


async def connect_peer(endpoint: Endpoint, timeout_s: float = CONNECT_S) -> Connection:
    """A connection to another broker of the cluster."""
    return await Connection.open(
        endpoint, client_id="ottla-replica", timeout_s=min(timeout_s, CONNECT_S)
    )


class Peers:
    """Connections to other brokers, opened on first use, and the tasks that use them."""

    def __init__(
        self,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        note_defect: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._note_defect = note_defect
        self._connections: dict[tuple[BrokerId, str], Connection] = {}
        self._openings: dict[tuple[BrokerId, str, Endpoint], asyncio.Task[Connection]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    @property
    def registration(self) -> BrokerImage | None:
        """The registration of this broker; its token proves to peers who sends a request."""
        return self._image().registered.get(self._broker_id)

    async def send(
        self,
        peer: BrokerId,
        request: object,
        response_class: type[Response],
        *,
        timeout_s: float,
        lane: str,
    ) -> Response:
        """The response of a peer; raises a ClientError. Requests of each lane have a connection.

        After an error the connection is closed: a response that comes later is not waited for.
        """
        connection = await self._connection(peer, lane)
        try:
            return await connection.send(request, response_class, timeout_s=timeout_s)
        except BaseException:
            connection.close()
            raise

    async def send_all(
        self,
        peer: BrokerId,
        requests: Sequence[tuple[object, type[Any]]],
        *,
        timeout_s: float,
        lane: str,
    ) -> list[Any]:
        """The responses to several requests, which are all sent before the first is awaited."""
        connection = await self._connection(peer, lane)
        try:
            return await asyncio.gather(
                *(
                    connection.send(request, response_class, timeout_s=timeout_s)
                    for request, response_class in requests
                )
            )
        except BaseException:
            connection.close()
            raise

    async def open(self, peer: BrokerId, lane: str) -> None:
        """Return when the lane's connection is open: a `send` that follows at once does not wait.

        A caller that numbers requests does so in between: they leave in the order of their numbers.
        """
        await self._connection(peer, lane)

    async def _connection(self, peer: BrokerId, lane: str) -> Connection:
        known = self._image().brokers.get(peer)
        if known is None or self._is_closed:
            raise Unreachable(f"broker {peer} is not registered")
        open_one = self._connections.get((peer, lane))
        if open_one is not None:
            if open_one.is_open and open_one.endpoint == known.endpoint:
                return open_one
            open_one.close()
        key = peer, lane, known.endpoint
        opening = self._openings.get(key)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(peer, lane, known.endpoint))
            self._openings[key] = opening
            opening.add_done_callback(partial(self._note_opened, key))
        await asyncio.wait([opening])  # a caller that stops waiting does not cancel it for others
        if opening.cancelled():
            raise Unreachable("this broker is stopping")
        return opening.result()

    async def _open(self, peer: BrokerId, lane: str, endpoint: Endpoint) -> Connection:
        opened = await connect_peer(endpoint)
        if self._is_closed:
            opened.close()
            raise Unreachable("this broker is stopping")
        self._connections[peer, lane] = opened
        return opened

    def _note_opened(
        self, key: tuple[BrokerId, str, Endpoint], opening: "asyncio.Task[Connection]"
    ) -> None:
        del self._openings[key]
        if not opening.cancelled():
            opening.exception()  # its callers get it too

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends when this object is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._note_done)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._note_defect(problem)

    def close(self) -> None:
        self._is_closed = True
        for task in (*self._tasks, *self._openings.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()


class PeerBatches(Generic[Item, Result]):
    """Items for peers, many to a request: those that come while one is under way share the next.

    `exchange` sends items to a peer and returns a result for each, in their order; its ClientError
    fails all of them. A request has at most one item of each key.
    """

    def __init__(
        self,
        peers: Peers,
        exchange: Exchange[Item, Result],
        *,
        items_max: int,
        key: Callable[[Item], Hashable],
    ) -> None:
        self._peers = peers
        self._exchange = exchange
        self._items_max = items_max
        self._key = key
        self._queues: dict[BrokerId, list[tuple[Item, asyncio.Future[Result]]]] = {}

    async def ask(self, peer: BrokerId, item: Item) -> Result:
        """The peer's result for this item; raises an ApiError."""
        return await self.begin(peer, item)

    def begin(self, peer: BrokerId, item: Item) -> "asyncio.Future[Result]":
        """The peer's result for this item, or an ApiError, when it is there."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(peer)
        if queue is None:
            queue = self._queues[peer] = []
            self._peers.spawn(self._run(peer, queue))
        queue.append((item, result))
        return result

    async def _run(
        self, peer: BrokerId, queue: list[tuple[Item, "asyncio.Future[Result]"]]
    ) -> None:
        """Send until nothing waits for this peer."""
        sent: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while queue:
                sent = self._take(queue)
                if not sent:
                    continue
                results = await self._send(peer, [item for item, _ in sent])
                for (_, future), result in zip(sent, results, strict=True):
                    _settle(future, result)
        finally:
            del self._queues[peer]
            for _, future in (*sent, *queue):  # those that this broker's end leaves without one
                _settle(future, RequestTimedOut("this broker is stopping"))

    def _take(
        self, queue: list[tuple[Item, "asyncio.Future[Result]"]]
    ) -> list[tuple[Item, "asyncio.Future[Result]"]]:
        """The items of the next request, in the order in which they came."""
        keys: set[Hashable] = set()
        taken: list[tuple[Item, asyncio.Future[Result]]] = []
        left: list[tuple[Item, asyncio.Future[Result]]] = []
        for item, future in queue:
            if future.done():  # its caller has gone
                continue
            key = self._key(item)
            if key in keys or len(taken) >= self._items_max:
                left.append((item, future))
            else:
                keys.add(key)
                taken.append((item, future))
        queue[:] = left
        return taken

    async def _send(self, peer: BrokerId, items: Sequence[Item]) -> Sequence[Result | ApiError]:
        try:
            results = await self._exchange(peer, items)
        except ClientError as problem:
            failure = RequestTimedOut(f"broker {peer} did not respond: {problem}")
            return [failure] * len(items)
        return results


def _settle(future: "asyncio.Future[Result]", result: Result | ApiError) -> None:
    if future.done():
        return
    if isinstance(result, ApiError):
        future.set_exception(result)
    else:
        future.set_result(result)
