"""Requests to peers over real sockets: batched, one under way, connections that are replaced."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fakes.answering_broker import AnsweringBroker
from fakes.cluster_images import alive, broker
from ottla.client.errors import ClientError, ConnectionLost, Unreachable
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.errors import ApiError, NotLeader, RequestTimedOut
from ottla.model import BrokerId
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.replication.peers import PeerBatches, Peers

HERE, THERE = BrokerId(1), BrokerId(2)


def fail(problem: BaseException) -> None:
    raise AssertionError("a defect") from problem


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


def peers_of(there: AnsweringBroker) -> Peers:
    changes = [
        *alive(broker(HERE), 1),
        *alive(broker(THERE, there.endpoint.port, host=there.endpoint.host), 1),
    ]
    image = ClusterImage().apply(changes, Revision(1))
    return Peers(HERE, lambda: image, fail)


def send(peers: Peers, to: BrokerId = THERE, timeout_s: float = 60.0) -> Awaitable[object]:
    return peers.send(to, MetadataRequest(), MetadataResponse, timeout_s=timeout_s, lane="test")


def test_a_connection_is_kept_and_replaced_when_it_has_ended() -> None:
    async def scenario() -> None:
        async with AnsweringBroker({ApiKey.METADATA: lambda _: MetadataResponse()}) as there:
            peers = peers_of(there)
            await send(peers)
            await send(peers)
            assert there.connection_count == 1
            there.hang_up()
            with pytest.raises(ConnectionLost):
                await send(peers)
            await send(peers)
            assert there.connection_count == 2
            peers.close()

    run(scenario)


def test_requests_that_come_while_a_connection_is_opened_share_it() -> None:
    async def scenario() -> None:
        async with AnsweringBroker({ApiKey.METADATA: lambda _: MetadataResponse()}) as there:
            peers = peers_of(there)
            requests = [asyncio.ensure_future(send(peers)) for _ in range(10)]
            await asyncio.sleep(0)  # they wait for the connection
            requests[0].cancel()  # whoever leaves does not take it from the others
            done = await asyncio.gather(*requests, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError)
            assert all(isinstance(one, MetadataResponse) for one in done[1:])
            assert there.connection_count == 1
            peers.close()

    run(scenario)


def test_whoever_waits_for_a_connection_when_the_broker_stops_is_refused() -> None:
    async def scenario() -> None:
        async with AnsweringBroker({}) as there:
            peers = peers_of(there)
            request = asyncio.ensure_future(send(peers))
            await asyncio.sleep(0)
            peers.close()
            with pytest.raises(Unreachable):
                await request

    run(scenario)


def test_a_request_that_takes_too_long_is_given_up_with_its_connection() -> None:
    async def scenario() -> None:
        async with AnsweringBroker({ApiKey.METADATA: lambda _: None}) as there:
            peers = peers_of(there)
            with pytest.raises(ClientError):
                await send(peers, timeout_s=0.01)
            there.scripts[ApiKey.METADATA] = lambda _: MetadataResponse()
            await send(peers)
            assert there.connection_count == 2
            peers.close()

    run(scenario)


def test_a_broker_that_is_not_registered_and_one_that_stops_are_refused() -> None:
    async def scenario() -> None:
        async with AnsweringBroker({}) as there:
            peers = peers_of(there)
            with pytest.raises(Unreachable):
                await send(peers, BrokerId(9))
            peers.close()
            with pytest.raises(Unreachable):
                await send(peers)
            assert there.connection_count == 0

    run(scenario)


class Bench:
    """Batches whose requests a test answers."""

    def __init__(self, items_max: int = 10) -> None:
        self.requests: list[list[str]] = []
        self.may_respond = asyncio.Event()
        self.problem: ClientError | None = None
        self.peers = Peers(HERE, ClusterImage, fail)
        self.batches: PeerBatches[str, str] = PeerBatches(
            self.peers, self._exchange, items_max=items_max, key=lambda item: item[0]
        )

    async def _exchange(self, peer: BrokerId, items: Sequence[str]) -> Sequence[str | ApiError]:
        self.requests.append(list(items))
        await self.may_respond.wait()
        if self.problem is not None:
            raise self.problem
        return [item.upper() if item != "x" else NotLeader("it moved") for item in items]

    def ask(self, *items: str) -> "list[asyncio.Task[str]]":
        return [asyncio.ensure_future(self.batches.ask(THERE, item)) for item in items]


def test_items_share_the_request_behind_the_one_that_is_under_way() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = bench.ask("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = bench.ask("b", "c", "d")
        await asyncio.sleep(0)
        assert bench.requests == [["a"]], "one at a time"
        bench.may_respond.set()
        assert await asyncio.gather(*first, *others) == ["A", "B", "C", "D"]
        assert bench.requests == [["a"], ["b", "c", "d"]]

    run(scenario)


def test_a_request_has_one_item_of_each_key_and_no_more_than_the_limit() -> None:
    async def scenario() -> None:
        bench = Bench(items_max=2)
        bench.may_respond.set()
        assert await asyncio.gather(*bench.ask("a1", "a2", "b", "c")) == ["A1", "A2", "B", "C"]
        assert bench.requests == [["a1", "b"], ["a2", "c"]]

    run(scenario)


def test_an_error_concerns_its_item_and_a_peer_that_is_gone_all_of_them() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.may_respond.set()
        refused, done = await asyncio.gather(*bench.ask("x", "y"), return_exceptions=True)
        assert isinstance(refused, NotLeader)
        assert done == "Y"
        bench.problem = ConnectionLost("gone")
        for lost in await asyncio.gather(*bench.ask("a", "b"), return_exceptions=True):
            assert isinstance(lost, RequestTimedOut)
        bench.problem = None
        assert await asyncio.gather(*bench.ask("a")) == ["A"]

    run(scenario)


def test_what_waits_when_the_broker_stops_is_refused_and_what_nobody_wants_is_not_sent() -> None:
    async def scenario() -> None:
        bench = Bench()
        first, second, third = bench.ask("a", "b", "c")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.requests == [["a", "b", "c"]]
        (late,) = bench.ask("d")
        await asyncio.sleep(0)
        late.cancel()
        bench.peers.close()
        results = await asyncio.gather(first, second, third, late, return_exceptions=True)
        assert [type(one) for one in results[:3]] == [RequestTimedOut] * 3
        assert len(bench.requests) == 1

    run(scenario)
