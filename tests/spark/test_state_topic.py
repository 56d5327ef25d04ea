"""The connector's state in a compacted topic; no JVM takes part."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

import ottla.testing
from ottla.client.admin import delete_topic
from ottla.client.client import Client
from ottla.client.configs import alter_settings, settings_of, topic_resource
from ottla.client.errors import NoSuchTopic
from ottla.model import Endpoint
from ottla.spark.state_topic import PARTITIONS, TOPIC, StateRefused, StateTopic


@pytest.fixture
def address() -> Iterator[str]:
    """A broker of its own: nobody has remembered anything there."""
    with ottla.testing.broker() as address:
        yield address


def run(address: str, test: Callable[[Callable[[], StateTopic], Client], Awaitable[None]]) -> None:
    """Run a test with as many processes as it asks for: each knows what it has read itself."""

    async def with_client() -> None:
        async with clients(address) as new_client:
            await test(lambda: StateTopic(new_client()), new_client())

    asyncio.run(with_client())


@asynccontextmanager
async def clients(address: str) -> AsyncIterator[Callable[[], Client]]:
    made = list[Client]()

    def new_client() -> Client:
        made.append(Client([Endpoint.parse(address)]))
        return made[-1]

    yield new_client
    for client in made:
        await client.close()


def test_what_one_process_writes_all_processes_read(address: str) -> None:
    async def test(new: Callable[[], StateTopic], client: Client) -> None:
        first, second = new(), new()
        assert await second.read("query") == {}
        with pytest.raises(NoSuchTopic):  # reading makes no topic
            await client.describe([TOPIC])
        await first.write("query", b"a", b"1")
        await first.write("query", b"b", b"2")
        assert await second.read("query") == {b"a": b"1", b"b": b"2"}
        await second.write("query", b"a", b"3")
        await second.write("query", b"b", None)
        for process in (first, second, new()):
            assert await process.read("query") == {b"a": b"3"}
        view = await client.describe([TOPIC])
        assert len(view.topics[TOPIC].partitions) == PARTITIONS
        topic = topic_resource(TOPIC)
        settings = {one.name: one.value for one in (await settings_of(client, [topic]))[topic]}
        assert settings["cleanup.policy"] == "compact"

    run(address, test)


def test_more_than_one_fetch_brings_is_read_to_the_end(address: str) -> None:
    async def test(new: Callable[[], StateTopic], client: Client) -> None:
        writer = new()
        for number in range(10):
            await writer.write("query", b"%d" % number, bytes(500_000))
        assert len(await new().read("query")) == 10

    run(address, test)


def test_a_topic_that_forgets_is_refused(address: str) -> None:
    async def test(new: Callable[[], StateTopic], client: Client) -> None:
        await new().write("query", b"a", b"1")
        policy = {"cleanup.policy": "delete"}
        await alter_settings(client, topic_resource(TOPIC), assign=policy, remove=[])
        with pytest.raises(StateRefused, match="would lose which batches were written"):
            await new().write("query", b"a", b"2")

    run(address, test)


def test_a_topic_that_was_created_again_is_read_anew(address: str) -> None:
    async def test(new: Callable[[], StateTopic], client: Client) -> None:
        reader = new()
        for number in range(3):
            await new().write("query", b"%d" % number, b"")
        assert len(await reader.read("query")) == 3
        await delete_topic(client, TOPIC)
        await new().write("query", b"other", b"")
        assert await reader.read("query") == {b"other": b""}

    run(address, test)
