"""What a broker writes down when it registers, and a disk that does not take it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.cluster_images import cluster
from fakes.memory_files import MemoryFiles
from ottla.broker.environment import Environment
from ottla.broker.meta_properties import Identity, MetaProperties
from ottla.broker.registration import Place, Registration
from ottla.cluster.state import ClusterState
from ottla.cluster.values import BrokerImage
from ottla.config import BrokerConfig
from ottla.errors import StorageFailed
from ottla.model import BrokerId, Endpoint, Uuid
from ottla.replication.replicas import Replicas

EPOCH = 7
HERE = BrokerId(1)
ADDRESS = Endpoint("127.0.0.1", 9092)
DATA = Path("/data")


class FakeState:
    """A cluster that registers whoever is prepared."""

    image = cluster(1)
    registered: BrokerImage | None = None

    def draw_uuid(self) -> Uuid:
        return Uuid(bytes(16))

    async def commit(self, decide: Callable[[Any], Any]) -> None:
        decide(self.image)

    async def register(
        self, broker: BrokerImage, *, ttl_ms: int, prepare: Callable[[int], Awaitable[None]]
    ) -> int:
        await prepare(EPOCH)
        self.registered = broker
        return EPOCH


class InlineWorker:
    def run(self, step: Callable[..., Any], done: Callable[[Any], None]) -> None:
        try:
            outcome = step(lambda: None)
        except OSError as error:
            outcome = error
        done(outcome)

    def close(self) -> None:
        return

    def abandon(self, timeout_s: float) -> bool:
        return True


class Joining:
    """A broker that joins a cluster whose store is elsewhere, on a disk that may fail."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_dir(DATA)
        self.state = FakeState()
        identity = Identity(self.state.image.cluster_id, HERE)
        self.meta = MetaProperties(self.files, DATA, identity, is_written=True)
        self.failures: list[OSError] = []
        self.registration = Registration(
            Place(HERE, None, None),
            cast("ClusterState", self.state),
            cast("Replicas", SimpleNamespace(logs={})),
            self.meta,
            InlineWorker(),
            Environment(has_own_store=False, boot_id="boot"),
            self._note_failure,
        )

    def _note_failure(self, error: OSError) -> StorageFailed:
        self.failures.append(error)
        return StorageFailed("the disk failed")

    def register(self) -> None:
        asyncio.run(self.registration.register(ADDRESS, BrokerConfig()))


def test_the_directory_knows_the_registration_before_the_broker_is_ready() -> None:
    joining = Joining()
    joining.register()
    assert joining.state.registered is not None
    assert (joining.meta.identity.broker_epoch, joining.meta.identity.boot_id) == (EPOCH, "boot")


def test_a_disk_that_fails_meanwhile_goes_offline_and_the_broker_is_not_ready() -> None:
    joining = Joining()
    joining.files.fail_next("sync_dir")
    with pytest.raises(StorageFailed, match="the disk failed"):
        joining.register()
    assert len(joining.failures) == 1
    assert joining.state.registered is None
