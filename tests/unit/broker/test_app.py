"""A broker that starts and stops: a clean directory afterwards, and a free lock if it fails."""

import asyncio
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from fakes.loopback import run, until
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.broker.readiness import Phase
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionLost
from ottla.clock import Clock
from ottla.cluster.store import CoordinationStore
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.storage.log_dir import LogDir

LISTEN = Endpoint("127.0.0.1", 0)


def options(data: Path, node_id: int = 0) -> ServeOptions:
    return ServeOptions(data=data, listen=LISTEN, node_id=BrokerId(node_id))


def names(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir())


def test_a_stopped_broker_leaves_a_mark_of_its_clean_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker.start(options(tmp_path), Environment())
        assert ".clean-shutdown" not in names(tmp_path)
        assert broker.address.port != 0
        await broker.stop()
        assert ".clean-shutdown" in names(tmp_path)

    run(scenario(), 60)


def test_a_directory_has_one_broker_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await Broker.start(options(tmp_path), Environment())
        with pytest.raises(UsageRefused):
            await Broker.start(options(tmp_path), Environment())
        await broker.stop()

    run(scenario(), 60)


def test_a_broker_that_cannot_start_gives_the_directory_back_as_it_was(tmp_path: Path) -> None:
    async def no_store(data: Path, clock: Clock) -> CoordinationStore:
        raise UsageRefused("no store today")

    async def scenario() -> None:
        broker = await Broker.start(options(tmp_path), Environment())
        await broker.stop()
        before = names(tmp_path)
        with pytest.raises(UsageRefused, match="no store today"):
            await Broker.start(options(tmp_path), Environment(open_store=no_store))
        with pytest.raises(UsageRefused, match="belongs to broker 0"):
            await Broker.start(options(tmp_path, node_id=3), Environment())
        assert names(tmp_path) == before
        broker = await Broker.start(options(tmp_path), Environment())
        await broker.stop()

    run(scenario(), 60)


def test_a_defect_while_stopping_is_raised_and_leaves_no_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log_dir: LogDir) -> None:
        raise KeyError("planted")

    async def scenario() -> None:
        broker = await Broker.start(options(tmp_path), Environment())
        monkeypatch.setattr(LogDir, "close", fail)
        with pytest.raises(KeyError, match="planted"):
            await broker.stop()
        async with asyncio.timeout(30):
            await broker.wait_failed()
        assert ".clean-shutdown" not in names(tmp_path)

    run(scenario(), 60)


def fetch_request() -> FetchRequest:
    """A fetch that waits for data for five minutes."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="t", partitions=[partition])
    return FetchRequest(max_wait_ms=300_000, min_bytes=1, topics=[topic])


def test_a_stop_responds_to_a_fetch_that_waits_and_takes_no_request_behind_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        broker = await Broker.start(options(tmp_path), Environment())
        client = await Connection.open(broker.address)
        any_topic = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        await client.send(any_topic, MetadataResponse)  # which creates it
        first, behind = (
            asyncio.create_task(client.send(fetch_request(), FetchResponse, version_max=12))
            for _ in range(2)
        )
        await until(lambda: broker._dispatcher.fetch.waiting_count == 1)
        await broker.stop()
        (topic,) = (await first).responses
        assert [one.partition_index for one in topic.partitions] == [0]
        with pytest.raises(ConnectionLost):
            await behind

    run(scenario(), 60)


def test_a_broker_that_hands_over_does_not_register_again(tmp_path: Path) -> None:
    """The chore may run between the two: then the broker counts as dead, and means to."""

    async def scenario(handled: Handled) -> None:
        broker = handled.broker
        broker._readiness.phase = Phase.STOPPING
        await broker._state.resign()
        assert not broker._registration.is_registered
        await broker._stay_registered()
        assert not broker._registration.is_registered

    handle(tmp_path, scenario)
