"""A client of a cluster: finds the broker for a request, sends it, and retries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Self, TypeVar

from ottla.client.cluster_view import ClusterView, view_of
from ottla.client.connection import CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S, Connection
from ottla.client.errors import (
    ClientError,
    ClusterUnreachable,
    ConnectionLost,
    DeadlineExceeded,
    NoSuchTopic,
    Refused,
    Unreachable,
    check,
)
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.protocol.messages.coordination import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

# While a topic is being created: it does not exist yet, or has no leader yet.
_BEING_CREATED: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
)
_CREATION_S: Final = 1.5  # how long the creation of a topic may take
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


class _KeyType(IntEnum):
    """The key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


_KINDS: Final = {
    _KeyType.GROUP: "group",
    _KeyType.TRANSACTION: "transactional id",
}

Response = TypeVar("Response")
Result = TypeVar("Result")


class Client:
    """Owns its connections, one per broker. Belongs to one event loop.

    `timeout_s` limits a single response, and all attempts of a call together.
    """

    def __init__(
        self,
        bootstrap: Sequence[Endpoint],
        *,
        client_id: str = "ottla",
        timeout_s: float = RESPONSE_TIMEOUT_S,
        addresses: Mapping[BrokerId, Endpoint] | None = None,
    ) -> None:
        """`addresses` replace the advertised listeners of brokers that cannot be reached there."""
        assert bootstrap, "a client needs a bootstrap address"
        self.timeout_s = timeout_s
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._addresses = dict(addresses or {})
        self._connections: dict[Endpoint, asyncio.Task[Connection]] = {}
        self._view = ClusterView({}, {})
        self._coordinators: dict[tuple[_KeyType, str], BrokerId] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every connection."""
        openings = list(self._connections.values())
        self._connections.clear()
        for opening in openings:
            opening.cancel()
        for outcome in await asyncio.gather(*openings, return_exceptions=True):
            if isinstance(outcome, Connection):
                outcome.close()

    # Requests

    async def send_to_any(self, request: object, response_class: type[Response]) -> Response:
        """Send a request to any broker: known ones first, then the bootstrap addresses."""
        connection = await self._connect_any()
        return await self._send(connection, request, response_class, self.timeout_s)

    async def send_to_broker(
        self,
        broker: BrokerId,
        request: object,
        response_class: type[Response],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> Response:
        """Send a request to this broker."""
        connection = await self.connect_broker(broker)
        return await self._send(
            connection, request, response_class, timeout_s or self.timeout_s, version_max
        )

    async def connect_broker(self, broker: BrokerId) -> Connection:
        """A connection to this broker, owned by the client."""
        if broker not in self._view.brokers:
            await self.describe([])
        endpoint = self._view.brokers.get(broker)
        if endpoint is None:
            raise Unreachable(f"broker {broker} is currently not in the cluster")
        try:
            return await self._connect(endpoint)
        except Unreachable as problem:
            if endpoint in self._bootstrap:
                raise
            raise Unreachable(
                f"{problem} (the address that broker {broker} advertises; see"
                " `ottla serve --advertise`)"
            ) from None

    async def open_connection(self, broker: BrokerId) -> Connection:
        """A connection of the caller's own to this broker, beside that of the client."""
        endpoint = (await self.connect_broker(broker)).endpoint
        return await Connection.open(
            endpoint,
            client_id=self._client_id,
            timeout_s=min(self.timeout_s, CONNECT_TIMEOUT_S),
        )

    async def leader_of(self, tp: TopicPartition) -> BrokerId:
        """The leader of a partition; `Refused` if there is none."""
        leader = self._view.leader_of(tp)
        if leader is not None:
            return leader
        partitions = (await self.describe([tp.topic])).topics[tp.topic].partitions
        if tp.partition >= len(partitions):
            raise NoSuchTopic(tp.topic, tp.partition)
        leader = partitions[tp.partition].leader
        if leader is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        return leader

    async def by_leader(
        self, tps: Iterable[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        """Partitions grouped by leader."""
        groups: dict[BrokerId, list[TopicPartition]] = {}
        for tp in tps:
            groups.setdefault(await self.leader_of(tp), []).append(tp)
        return groups

    async def send_to_coordinator(
        self,
        group_id: str,
        request: object,
        response_class: type[Response],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> Response:
        """Send a request to the coordinator of a group."""
        return await self.send_to_broker(
            await self.coordinator_of(group_id),
            request,
            response_class,
            timeout_s=timeout_s,
            version_max=version_max,
        )

    async def coordinator_of(self, group_id: str) -> BrokerId:
        """The coordinator of a group; cached until a request is retried."""
        return await self._find_coordinator(_KeyType.GROUP, group_id)

    async def send_to_transaction_coordinator(
        self,
        transactional_id: str,
        request: object,
        response_class: type[Response],
        *,
        version_max: int | None = None,
    ) -> Response:
        """Send a request to the coordinator of a transactional id."""
        coordinator = await self._find_coordinator(_KeyType.TRANSACTION, transactional_id)
        return await self.send_to_broker(
            coordinator, request, response_class, version_max=version_max
        )

    async def transaction_version(self) -> int:
        """The finalized transaction.version of the cluster; 0 if it has none."""
        return (await self._connect_any()).transaction_version

    async def _find_coordinator(self, kind: "_KeyType", name: str) -> BrokerId:
        known = self._coordinators.get((kind, name))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])
        response = await self.send_to_any(request, FindCoordinatorResponse)
        # Since version 4 the response has one result per key; before, it is the result.
        found = response.coordinators[0] if response.coordinators else response
        check(found.error_code, f"{_KINDS[kind]} {name}", found.error_message or None)
        broker = BrokerId(found.node_id)
        endpoint = self._addresses.get(broker, Endpoint(found.host, found.port))
        self._view = ClusterView({**self._view.brokers, broker: endpoint}, self._view.topics)
        self._coordinators[kind, name] = broker
        return broker

    async def disconnect(self, broker: BrokerId) -> None:
        """Close the connection to a broker without waiting for its pending responses."""
        endpoint = self._view.brokers.get(broker)
        opening = None if endpoint is None else self._connections.pop(endpoint, None)
        if opening is None:
            return
        opening.cancel()
        for outcome in await asyncio.gather(opening, return_exceptions=True):
            if isinstance(outcome, Connection):
                outcome.close()

    # Metadata

    async def describe(self, topics: Sequence[str] | None, *, create: bool = False) -> ClusterView:
        """Brokers and these topics, or all topics for None; an unknown one is `NoSuchTopic`.

        With `create`, the broker creates missing topics if its settings allow that.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response = await self.send_to_any(request, MetadataResponse)
        check(response.error_code, "the cluster")
        view = view_of(response)
        brokers = {id_: self._addresses.get(id_, where) for id_, where in view.brokers.items()}
        self._view = ClusterView(brokers, {**self._view.topics, **view.topics})
        for topic in topics or ():
            _check_topic(view, topic)
        return view

    async def describe_or_create(self, topic: str) -> ClusterView:
        """The view of a topic, created if it is missing; waits a little for its leaders."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + _CREATION_S
        while True:
            try:
                view = await self.describe([topic], create=True)
                if all(item.leader is not None for item in view.topics[topic].partitions):
                    return view
            except Refused as problem:
                if problem.code not in _BEING_CREATED or loop.time() > give_up_s:
                    raise
            else:
                if loop.time() > give_up_s:
                    return view
            await asyncio.sleep(_PAUSE_MIN_S)

    # Retries

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        *,
        on: tuple[type[ClientError], ...] = (Unreachable,),
        timeout_s: float | None = None,
    ) -> Result:
        """Call `attempt` until it succeeds, fails for good, or time is up.

        `Refused` is retried when the broker did nothing; `on` are the other errors that are. Each
        attempt sees fresh metadata. `timeout_s` replaces the client's for requests whose responses
        take longer.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                return await attempt()
            except Refused as problem:
                if not problem.is_retriable or loop.time() + pause_s > give_up_s:
                    raise
            except on:
                if loop.time() + pause_s > give_up_s:
                    raise
            self._view = ClusterView(self._view.brokers, {})
            self._coordinators.clear()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    # Connections

    async def _send(
        self,
        connection: Connection,
        request: object,
        response_class: type[Response],
        timeout_s: float,
        version_max: int | None = None,
    ) -> Response:
        try:
            return await connection.send(
                request, response_class, timeout_s=timeout_s, version_max=version_max
            )
        except DeadlineExceeded:
            # Later requests on this connection would have to wait for that response first.
            connection.close()
            raise

    async def _connect_any(self) -> Connection:
        problems = list[str]()
        for endpoint in dict.fromkeys([*self._view.brokers.values(), *self._bootstrap]):
            try:
                return await self._connect(endpoint)
            except (Unreachable, ConnectionLost, DeadlineExceeded) as problem:
                problems.append(str(problem))
        raise ClusterUnreachable(f"no broker can be reached ({'; '.join(problems)})")

    async def _connect(self, endpoint: Endpoint) -> Connection:
        """The connection to an endpoint; callers share one that is being opened."""
        opening = self._connections.get(endpoint)
        if opening is None or _is_closed(opening):
            opening = asyncio.create_task(
                Connection.open(
                    endpoint,
                    client_id=self._client_id,
                    timeout_s=min(self.timeout_s, CONNECT_TIMEOUT_S),
                )
            )
            self._connections[endpoint] = opening
        return await asyncio.shield(opening)


def _is_closed(opening: asyncio.Task[Connection]) -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or not opening.result().is_open


def _check_topic(view: ClusterView, name: str) -> None:
    topic = view.topics.get(name)
    if topic is None or topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NoSuchTopic(name)
    check(topic.error, f"topic {name}")
