"""A broker in the test's process whose handlers are called without a socket."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fakes.loopback import run
from ottla.broker.apis import Handlers
from ottla.broker.app import Broker, ServeOptions
from ottla.broker.deferred import Deferred
from ottla.broker.environment import Environment
from ottla.broker.services import RequestContext, Services
from ottla.config import BrokerConfig
from ottla.coordinator.groups.coordinator import GroupCoordinator
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.errors import CoordinatorNotAvailable
from ottla.model import Endpoint
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

_TIMEOUT_S = 60
_GROUP = 32  # a resource type
_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Handled:
    """Calls handlers with decoded requests, and waits for their responses."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.services: Services = broker.services
        self._handlers = Handlers(self.services)

    async def call(self, key: ApiKey, request: object, version: int) -> Any:
        """The response message of the handler of an API."""
        response = self._handlers[key](request, RequestContext(version, "test", "127.0.0.1"))
        if isinstance(response, Deferred):
            ready = asyncio.Event()
            response.on_ready(ready.set)
            await ready.wait()
            return response.message()
        if asyncio.iscoroutine(response):
            return await response
        return response

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic])
        response = await self.call(ApiKey.CREATE_TOPICS, request, 7)
        assert response.topics[0].error_code == 0, response

    async def begin_at_the_first_record(self, share_group: str) -> None:
        """Else a share group would begin where the log ends when its state has been read."""
        config = IncrementalAlterableConfig(name="share.auto.offset.reset", value="earliest")
        resource = IncrementalAlterConfigsResource(
            resource_type=_GROUP, resource_name=share_group, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = await self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
        assert not response.responses[0].error_code, response

    async def find_coordinators(self) -> None:
        """Create the internal topics, and wait until their shards have read their logs."""
        for coordinator in (self.services.groups, self.services.transactions):
            await _wait_loaded(coordinator)


async def _wait_loaded(coordinator: GroupCoordinator | TransactionCoordinator) -> None:
    while True:
        with contextlib.suppress(CoordinatorNotAvailable):
            await coordinator.find("key")
            if coordinator.machines():
                return
        await asyncio.sleep(0.01)


def handle(data: Path, scenario: Callable[[Handled], Awaitable[None]], **settings: str) -> None:
    """Run a scenario with the handlers of a new broker; `_` in a setting's name is a dot."""
    raw = _SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}

    async def main() -> None:
        options = ServeOptions(
            data=data, listen=Endpoint("127.0.0.1", 0), config=BrokerConfig.parse(raw)
        )
        broker = await Broker.start(options, Environment())
        try:
            await scenario(Handled(broker))
        finally:
            await broker.stop()

    run(main(), _TIMEOUT_S)
