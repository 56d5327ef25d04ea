"""Scripted brokers that lead the partitions of some topics in turn, and a client of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from fakes.answering_broker import AnsweringBroker, Script
from ottla.client.client import Client
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_TIMEOUT_S = 20.0


class ScriptedCluster:
    """Partition N of each topic is led by broker N, modulo the number of brokers.

    The last broker coordinates every group and transactional id.
    """

    def __init__(
        self, topics: Mapping[str, int], scripts: Mapping[ApiKey, Script], broker_count: int = 1
    ) -> None:
        """`topics` are names and partition counts; all brokers have the same scripts."""
        self.topics = dict(topics)
        self.brokers = [
            AnsweringBroker(
                {
                    ApiKey.METADATA: self._metadata,
                    ApiKey.FIND_COORDINATOR: self._find_coordinator,
                    **scripts,
                }
            )
            for _ in range(broker_count)
        ]

    def asked(self, key: ApiKey, broker: int = 0) -> list[object]:
        """The requests of one kind that a broker has received."""
        return [request for known, _, request in self.brokers[broker].asked if known is key]

    def versions_asked(self, key: ApiKey, broker: int = 0) -> list[int]:
        return [version for known, version, _ in self.brokers[broker].asked if known is key]

    def run(self, scenario: Callable[[Client], Awaitable[None]], *, timeout_s: float = 1.0) -> None:
        """Run a scenario with a client that knows the first broker."""

        async def main() -> None:
            async with AsyncExitStack() as opened, asyncio.timeout(_TIMEOUT_S):
                for broker in self.brokers:
                    await opened.enter_async_context(broker)
                bootstrap = [self.brokers[0].endpoint]
                client = Client(bootstrap, timeout_s=timeout_s)
                await scenario(await opened.enter_async_context(client))

        asyncio.run(main())

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        wanted = self.topics if request.topics is None else [t.name or "" for t in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=id_, host=one.endpoint.host, port=one.endpoint.port)
                for id_, one in enumerate(self.brokers)
            ],
            topics=[self._topic(name) for name in wanted],
        )

    def _find_coordinator(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        last = self.brokers[-1].endpoint
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=len(self.brokers) - 1, host=last.host, port=last.port)
                for key in request.coordinator_keys
            ]
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=index % len(self.brokers),
                    replica_nodes=[index % len(self.brokers)],
                    isr_nodes=[index % len(self.brokers)],
                )
                for index in range(self.topics[name])
            ],
        )
