"""Asks whichever broker can answer, and asks again while that may help and time is left."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Self, TypeVar

from ottla.client.cluster_view import ClusterView, view_of
from ottla.client.connection import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, Connection
from ottla.client.errors import (
    ClientError,
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

# While a topic is being made: it is not there yet, or nobody leads it yet.
_BEING_MADE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
)
_CREATION_S: Final = 1.5  # how long a topic may be in the making
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


class _Coordinated(IntEnum):
    """What has a coordinator, as FindCoordinator numbers it."""

    GROUP = 0
    TRANSACTION = 1


_KINDS: Final = {
    _Coordinated.GROUP: "group",
    _Coordinated.TRANSACTION: "transactional id",
}

Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Client:
    """Owns its connections, one for each broker it has talked to. Belongs to one event loop.

    `timeout_s` is how long an answer may take, and for how long a call goes on trying.
    """

    def __init__(
        self,
        bootstrap: Sequence[Endpoint],
        *,
        client_id: str = "ottla",
        timeout_s: float = ANSWER_TIMEOUT_S,
        addresses: Mapping[BrokerId, Endpoint] | None = None,
    ) -> None:
        """`addresses` are where brokers are reached that advertise what cannot be reached."""
        assert bootstrap, "somewhere has to be asked first"
        self.timeout_s = timeout_s
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._addresses = dict(addresses or {})
        self._connections: dict[Endpoint, asyncio.Task[Connection]] = {}
        self._view = ClusterView({}, {})
        self._coordinators: dict[tuple[_Coordinated, str], BrokerId] = {}

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

    # Who can be asked

    async def ask_any(self, request: object, answer_class: type[Answer]) -> Answer:
        """Ask a broker, whichever: brokers we know of, then those we were told at the start."""
        connection = await self._connect_any()
        return await self._ask(connection, request, answer_class, self.timeout_s)

    async def ask_broker(
        self,
        broker: BrokerId,
        request: object,
        answer_class: type[Answer],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> Answer:
        """Ask this broker."""
        connection = await self.connect_broker(broker)
        return await self._ask(
            connection, request, answer_class, timeout_s or self.timeout_s, version_max
        )

    async def connect_broker(self, broker: BrokerId) -> Connection:
        """A connection to this broker; it stays the client's."""
        if broker not in self._view.brokers:
            await self.describe([])
        endpoint = self._view.brokers.get(broker)
        if endpoint is None:
            raise Unreachable(f"the cluster has no broker {broker} at the moment")
        try:
            return await self._connect(endpoint)
        except Unreachable as problem:
            if endpoint in self._bootstrap:
                raise
            raise Unreachable(
                f"{problem} (where broker {broker} tells its clients to connect; see"
                " `ottla serve --advertise`)"
            ) from None

    async def leader_of(self, tp: TopicPartition) -> BrokerId:
        """Who leads a partition; one without leader is `Refused`."""
        leader = self._view.leader_of(tp)
        if leader is not None:
            return leader
        partitions = (await self.describe([tp.topic])).topics[tp.topic].partitions
        if tp.partition >= len(partitions):
            raise NoSuchTopic(f"partition {tp.partition} of topic {tp.topic}")
        leader = partitions[tp.partition].leader
        if leader is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        return leader

    async def by_leader(
        self, tps: Iterable[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        """Partitions grouped by who leads them."""
        groups: dict[BrokerId, list[TopicPartition]] = {}
        for tp in tps:
            groups.setdefault(await self.leader_of(tp), []).append(tp)
        return groups

    async def ask_coordinator(
        self,
        group_id: str,
        request: object,
        answer_class: type[Answer],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> Answer:
        """Ask the broker that coordinates a group."""
        return await self.ask_broker(
            await self.coordinator_of(group_id),
            request,
            answer_class,
            timeout_s=timeout_s,
            version_max=version_max,
        )

    async def coordinator_of(self, group_id: str) -> BrokerId:
        """Who coordinates a group; remembered until something has to be tried again."""
        return await self._find_coordinator(_Coordinated.GROUP, group_id)

    async def ask_transaction_coordinator(
        self,
        transactional_id: str,
        request: object,
        answer_class: type[Answer],
        *,
        version_max: int | None = None,
    ) -> Answer:
        """Ask the broker that coordinates the transactions of an id."""
        coordinator = await self._find_coordinator(_Coordinated.TRANSACTION, transactional_id)
        return await self.ask_broker(coordinator, request, answer_class, version_max=version_max)

    async def transaction_version(self) -> int:
        """Which version of transactions the cluster has agreed on; 0 where it says nothing."""
        return (await self._connect_any()).transaction_version

    async def _find_coordinator(self, kind: "_Coordinated", name: str) -> BrokerId:
        known = self._coordinators.get((kind, name))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])
        answer = await self.ask_any(request, FindCoordinatorResponse)
        # Since version 4 there is one answer for each key; before, the answer is the only one.
        found = answer.coordinators[0] if answer.coordinators else answer
        check(found.error_code, f"{_KINDS[kind]} {name}", found.error_message or None)
        broker = BrokerId(found.node_id)
        endpoint = self._addresses.get(broker, Endpoint(found.host, found.port))
        self._view = ClusterView({**self._view.brokers, broker: endpoint}, self._view.topics)
        self._coordinators[kind, name] = broker
        return broker

    async def hang_up(self, broker: BrokerId) -> None:
        """End the connection to a broker: what was asked there is given up, not waited for."""
        endpoint = self._view.brokers.get(broker)
        opening = None if endpoint is None else self._connections.pop(endpoint, None)
        if opening is None:
            return
        opening.cancel()
        for outcome in await asyncio.gather(opening, return_exceptions=True):
            if isinstance(outcome, Connection):
                outcome.close()

    # What there is

    async def describe(self, topics: Sequence[str] | None, *, create: bool = False) -> ClusterView:
        """Brokers and these topics, or all topics for None; an unknown one is `NoSuchTopic`.

        With `create`, the broker makes missing topics if its settings allow that.
        """
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        answer = await self.ask_any(request, MetadataResponse)
        check(answer.error_code, "the cluster")
        view = view_of(answer)
        brokers = {id_: self._addresses.get(id_, where) for id_, where in view.brokers.items()}
        self._view = ClusterView(brokers, {**self._view.topics, **view.topics})
        for topic in topics or ():
            _check_topic(view, topic)
        return view

    async def describe_or_create(self, topic: str) -> ClusterView:
        """One topic, made if need be and allowed; it may take a moment until somebody leads it."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + _CREATION_S
        while True:
            try:
                view = await self.describe([topic], create=True)
                if all(item.leader is not None for item in view.topics[topic].partitions):
                    return view
            except Refused as problem:
                if problem.code not in _BEING_MADE or loop.time() > give_up_s:
                    raise
            else:
                if loop.time() > give_up_s:
                    return view
            await asyncio.sleep(_PAUSE_MIN_S)

    # Trying again

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        *,
        on: tuple[type[ClientError], ...] = (Unreachable,),
        patience_s: float | None = None,
    ) -> Result:
        """Try until it works, trying again cannot help, or time is up.

        A refusal is worth another try when the broker did nothing; `on` are the other problems
        that are. Each try sees fresh metadata. `patience_s` is for questions whose answers may
        take longer than `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + (self.timeout_s if patience_s is None else patience_s)
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                return await attempt()
            except Refused as problem:
                if not problem.may_try_again or loop.time() + pause_s > give_up_s:
                    raise
            except on:
                if loop.time() + pause_s > give_up_s:
                    raise
            self._view = ClusterView(self._view.brokers, {})
            self._coordinators.clear()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    # Connections

    async def _ask(
        self,
        connection: Connection,
        request: object,
        answer_class: type[Answer],
        timeout_s: float,
        version_max: int | None = None,
    ) -> Answer:
        try:
            return await connection.ask(
                request, answer_class, timeout_s=timeout_s, version_max=version_max
            )
        except DeadlineExceeded:
            # Whatever comes after on this connection would have to wait for that answer first.
            connection.close()
            raise

    async def _connect_any(self) -> Connection:
        problems = list[str]()
        for endpoint in dict.fromkeys([*self._view.brokers.values(), *self._bootstrap]):
            try:
                return await self._connect(endpoint)
            except (Unreachable, ConnectionLost, DeadlineExceeded) as problem:
                problems.append(str(problem))
        raise Unreachable(f"no broker can be reached ({'; '.join(problems)})")

    async def _connect(self, endpoint: Endpoint) -> Connection:
        """The connection to an endpoint; who asks while it is being opened waits for the same."""
        opening = self._connections.get(endpoint)
        if opening is None or _is_over(opening):
            opening = asyncio.create_task(
                Connection.open(
                    endpoint,
                    client_id=self._client_id,
                    timeout_s=min(self.timeout_s, CONNECT_TIMEOUT_S),
                )
            )
            self._connections[endpoint] = opening
        return await asyncio.shield(opening)


def _is_over(opening: asyncio.Task[Connection]) -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or not opening.result().is_open


def _check_topic(view: ClusterView, name: str) -> None:
    topic = view.topics.get(name)
    if topic is None or topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NoSuchTopic(f"topic {name}")
    check(topic.error, f"topic {name}")
