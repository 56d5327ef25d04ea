"""A connection of the transport: queues as topics, and two topics that all processes follow.

A durable queue is a topic that a share group of the same name reads. Queues that go with their
consumers, of remote control and replies, exist in the memory of the process that declared them:
their messages are in one short-lived topic, which every such process reads from the end that it had
when the first one was declared. Bindings of durable queues are in one compacted topic.
"""

import asyncio
import json
import queue as queues
import re
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any, Final

from kombu.utils.json import dumps, loads

from ottla.client.admin import delete_topic
from ottla.client.client import Client
from ottla.client.configs import settings_of, topic_resource
from ottla.client.errors import ClientError, NoSuchTopic
from ottla.client.share_offsets import describe_share_offsets
from ottla.clock import SystemClock
from ottla.kombu.followed_topic import FollowedTopic, ensure_topic
from ottla.kombu.routes import Binding, queues_for
from ottla.kombu.timing import Timing, timing_of
from ottla.model import Endpoint
from ottla.records.batch import Record
from ottla.work.core import GROUP_SETTINGS, LEASE_MAX_S, QueueCore
from ottla.work.leases import Lease
from ottla.work.puts import DELAY_SETTING, Puts

_TIMEOUT_S: Final = 30.0
_BROADCAST: Final = "ottla.kombu.broadcast"
_BINDINGS: Final = "ottla.kombu.bindings"
_BROADCAST_SETTINGS: Final = {"retention.ms": "3600000"}
_BINDINGS_SETTINGS: Final = {"cleanup.policy": "compact"}
_QUEUE_SETTINGS: Final = {DELAY_SETTING: "true"}
# A worker that dies has been delivered more than it began: as many tries as there can be.
_GROUP_SETTINGS: Final = {**GROUP_SETTINGS, "share.delivery.count.limit": "10"}
_BROKER_DEFAULT: Final = -1  # partitions of a topic
_FIRST_WAIT_S: Final = 2.0  # for a group that is joined, and whose state is read first
_LOCAL_MAX: Final = 10_000  # messages of a queue in memory; the oldest go first

Payload = dict[str, Any]


def topic_of(queue: str) -> str:
    """The topic of a queue: what a topic's name cannot have is written as a number."""
    return re.sub(r"[^a-zA-Z0-9.-]", lambda found: f"_{ord(found[0]):x}_", queue)


class Session:
    """Owner of clients and queues; everything but the local queues runs on one event loop."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._endpoints = [Endpoint.parse(part.strip()) for part in servers.split(",")]
        self._client = self._make_client()
        self._cores: dict[str, QueueCore] = {}
        self._puts: dict[str, Puts] = {}
        self._durable: set[str] = set()  # queues that are known to have a topic
        self._can_delay: dict[str, bool] = {}
        self._bindings: dict[str, Binding] = {}  # of durable queues, by key of their record
        self._local_bindings: set[Binding] = set()
        self._local: dict[str, deque[Payload]] = {}
        self._followed_bindings = FollowedTopic(
            self._client, self._make_client(), _BINDINGS, self._note_binding
        )
        self._followed_broadcast = FollowedTopic(
            self._client, self._make_client(), _BROADCAST, self._note_broadcast
        )

    def _make_client(self) -> Client:
        return Client(self._endpoints, client_id="ottla-kombu", timeout_s=_TIMEOUT_S)

    async def open(self) -> None:
        """Return when a broker has responded and the bindings are known.

        A cluster that cannot be reached is an error at once: kombu has its own policy of retries.
        """
        await self._client.describe([])
        await ensure_topic(self._client, _BINDINGS, 1, _BINDINGS_SETTINGS)
        await ensure_topic(self._client, _BROADCAST, 1, _BROADCAST_SETTINGS)
        await self._followed_bindings.start(from_beginning=True)

    async def close(self) -> None:
        await asyncio.gather(*(core.close() for core in self._cores.values()))
        await asyncio.gather(*(puts.close() for puts in self._puts.values()))
        await self._followed_bindings.close()
        await self._followed_broadcast.close()
        await self._client.close()

    # Queues

    async def declare(self, queue: str, *, is_durable: bool) -> None:
        """Make a queue, unless it is there."""
        if not is_durable:
            if queue not in self._local:
                self._local[queue] = deque(maxlen=_LOCAL_MAX)
                await self._followed_broadcast.start(from_beginning=False)
        elif queue not in self._durable:
            await ensure_topic(self._client, topic_of(queue), _BROKER_DEFAULT, _QUEUE_SETTINGS)
            self._durable.add(queue)

    def is_local(self, queue: str) -> bool:
        return queue in self._local

    async def exists(self, queue: str) -> bool:
        """True if a durable queue has a topic."""
        if queue in self._durable:
            return True
        try:
            await self._client.retry(lambda: self._client.describe([topic_of(queue)]))
        except NoSuchTopic:
            return False
        self._durable.add(queue)
        return True

    async def delete(self, queue: str) -> None:
        """Forget a queue, its bindings and its messages."""
        if self._local.pop(queue, None) is not None:
            self._local_bindings = {b for b in self._local_bindings if b.queue != queue}
            return
        for key, binding in list(self._bindings.items()):
            if binding.queue == queue:
                await self._put(_BINDINGS, None, key=key)
                self._bindings.pop(key, None)
        core = self._cores.pop(queue, None)
        if core is not None:
            await core.close()
        if await self.exists(queue):
            self._durable.discard(queue)
            await delete_topic(self._client, topic_of(queue))

    async def size(self, queue: str) -> int:
        """How many messages of a queue are not finished."""
        if self.is_local(queue):
            return len(self._local[queue])
        try:
            found = await describe_share_offsets(self._client, topic_of(queue))
        except ClientError:
            return 0  # no consumer has read it yet
        return sum(offset.lag or 0 for offset in found.values())

    async def bind(self, binding: Binding) -> None:
        if self.is_local(binding.queue):
            self._local_bindings.add(binding)
            return
        key = json.dumps(binding)
        if key not in self._bindings:
            await self._put(_BINDINGS, key, key=key)
            self._bindings[key] = binding

    async def unbind(self, binding: Binding) -> None:
        self._local_bindings.discard(binding)
        key = json.dumps(binding)
        if self._bindings.pop(key, None) is not None:
            await self._put(_BINDINGS, None, key=key)

    def _note_binding(self, record: Record) -> None:
        key = (record.key or b"").decode()
        if record.value is None:
            self._bindings.pop(key, None)
        else:
            self._bindings[key] = Binding(*json.loads(key))

    # Sending

    async def publish(self, message: Payload, exchange: str, routing_key: str, kind: str) -> None:
        """Send a message to durable queues; to those in memory if they may want it.

        A message of a direct exchange is for the durable queues that are bound with its key, or,
        if there are none, for those in memory.
        """
        found = await self._durable_queues(exchange, routing_key)
        timing = timing_of(message, datetime.now(UTC))
        for queue in found:
            await self._send(queue, message, timing)
        if not found or (exchange and kind != "direct"):
            packed = {"exchange": exchange, "routing_key": routing_key, "message": message}
            await self._put(_BROADCAST, dumps(packed))

    async def _durable_queues(self, exchange: str, routing_key: str) -> list[str]:
        if not exchange:
            return [routing_key] if await self.exists(routing_key) else []
        found = queues_for(self._bindings.values(), exchange, routing_key)
        if not found and not self._is_bound_here(exchange, routing_key):
            await self._followed_bindings.catch_up()  # another process may have bound one just now
            found = queues_for(self._bindings.values(), exchange, routing_key)
        return sorted(found)

    def _is_bound_here(self, exchange: str, routing_key: str) -> bool:
        return bool(queues_for(self._local_bindings, exchange, routing_key))

    async def _send(self, queue: str, message: Payload, timing: Timing) -> None:
        topic = topic_of(queue)
        can_delay = timing.at is not None and await self._delays(topic)
        await self._put(
            topic, dumps(message), at=timing.at if can_delay else None, ttl_s=timing.ttl_s
        )

    async def _delays(self, topic: str) -> bool:
        """True if the broker holds messages of a topic back; else a worker does."""
        if topic not in self._can_delay:
            resource = topic_resource(topic)
            found = await self._client.retry(lambda: settings_of(self._client, [resource]))
            value = next((s.value for s in found[resource] if s.name == DELAY_SETTING), None)
            self._can_delay[topic] = value == "true"
        return self._can_delay[topic]

    async def _put(
        self,
        topic: str,
        value: str | None,
        *,
        key: str | None = None,
        at: datetime | None = None,
        ttl_s: float | None = None,
    ) -> None:
        puts = self._puts.get(topic)
        if puts is None:
            puts = self._puts[topic] = Puts(self._client, topic, SystemClock(), SystemRandom())
        await puts.put(value, key=key, headers=(), delay_s=None, at=at, ttl_s=ttl_s)

    # Receiving

    def take_local(self, queue: str) -> Payload:
        """The next message of a queue in memory; raises `queue.Empty`."""
        try:
            return self._local[queue].popleft()
        except (IndexError, KeyError):
            raise queues.Empty from None

    async def get(self, queue: str, records_max: int, wait_s: float) -> list[Lease]:
        if queue not in self._cores:
            wait_s = max(wait_s, _FIRST_WAIT_S)
        return await self.core(queue).get(records_max, wait_s)

    def core(self, queue: str) -> QueueCore:
        """The consumer of a durable queue."""
        core = self._cores.get(queue)
        if core is None:
            topic = topic_of(queue)
            core = self._cores[queue] = QueueCore(
                topic,
                servers=self._servers,
                group=topic,
                timeout_s=_TIMEOUT_S,
                lease_max_s=LEASE_MAX_S,
                group_settings=_GROUP_SETTINGS,
            )
        return core

    def _note_broadcast(self, record: Record) -> None:
        packed: Mapping[str, Any] = loads(record.value or b"{}")
        exchange, routing_key = packed.get("exchange", ""), packed.get("routing_key", "")
        for queue in queues_for(self._local_bindings, exchange, routing_key):
            local = self._local.get(queue)
            if local is not None:
                local.append(packed["message"])
