"""A stopped broker's directory: refused if it is none, planned before anything changes."""

import asyncio
from pathlib import Path

import pytest

from fakes.loopback import run
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.environment import Environment
from ottla.broker.offline import open_doubtful, open_strays
from ottla.cluster.controller.topics import NewTopic
from ottla.cluster.store_sqlite import STORE_FILES
from ottla.errors import UsageRefused
from ottla.model import BrokerId, Endpoint


def make_directory(data: Path) -> None:
    """A directory that a broker with one topic has left."""

    async def scenario() -> None:
        options = ServeOptions(data=data, listen=Endpoint("127.0.0.1", 0))
        broker = await Broker.start(options, Environment())
        await broker.services.topic_creation.create([NewTopic(name="t")])
        await broker.stop()

    run(scenario(), 60)


async def list_strays(data: Path) -> list[str]:
    async with open_strays(data) as strays:
        return [stray.directory for stray in strays.found()]


async def plan(data: Path) -> list[str]:
    async with open_doubtful(data, BrokerId(0)) as store:
        return (await store.plan()).sentences


def test_a_directory_that_is_not_a_brokers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="not the data directory of a broker"):
        asyncio.run(list_strays(tmp_path))
    with pytest.raises(UsageRefused, match="nothing to accept"):
        asyncio.run(plan(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_clean_directory_has_no_strays_and_is_free_afterwards(tmp_path: Path) -> None:
    make_directory(tmp_path)
    assert asyncio.run(list_strays(tmp_path)) == []
    make_directory(tmp_path)

    async def find() -> None:
        async with open_strays(tmp_path) as strays:
            strays.find(["t-0.stray"])

    with pytest.raises(UsageRefused, match=r"there is no stray 't-0\.stray'"):
        asyncio.run(find())


def test_a_plan_for_a_lost_store_sets_its_logs_aside_and_changes_nothing_yet(
    tmp_path: Path,
) -> None:
    make_directory(tmp_path)
    for name in STORE_FILES:
        (tmp_path / name).unlink(missing_ok=True)
    logs = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    sentences = " ".join(asyncio.run(plan(tmp_path)))
    assert "the store does not know t-0" in sentences
    assert "producer ids go on" in sentences
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == logs
