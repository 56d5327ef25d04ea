"""Members of a share group in a simulation: they accept, release, reject, renew, and crash.

A member that crashed keeps its partitions until its session ends, and what it had acquired until
its lock ends: so no member crashes while the rest is waited for.
"""

import asyncio
import contextlib
from random import Random
from typing import Final

from histories.final import read_values
from histories.history import Acknowledged, Delivered, Shares
from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.client.configs import Resource, ResourceKind, alter_settings
from ottla.client.errors import ClientError
from ottla.client.share_consumer import AcknowledgeKind, ShareConsumer, ShareRecord
from ottla.client.share_offsets import describe_share_offsets
from ottla.model import TopicPartition
from sim.workload import Workload

GROUP: Final = "sharers"
TOPIC: Final = "jobs"
DEAD: Final = "dlq.jobs"
_PARTITIONS: Final = 3
_MEMBERS: Final = 3
_KINDS: Final = (AcknowledgeKind.ACCEPT, AcknowledgeKind.RELEASE, AcknowledgeKind.REJECT)
_WEIGHTS: Final = (85, 10, 5)
_WORK_S: Final = (0.01, 0.3, 1.0)  # between getting records and acknowledging them, on average
_POLL_MS: Final = 300
_ASK_S: Final = 0.5
_SETTINGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "errors.deadletterqueue.topic.name": DEAD,
}


class ShareWorkload:
    """Owner of the share group's history; producers and tasks are those of the workload."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._shares = workload.history.shares = Shares()
        self.tps = [TopicPartition(TOPIC, index) for index in range(_PARTITIONS)]
        self._dead_tps = [TopicPartition(DEAD, index) for index in range(_PARTITIONS)]
        self._is_calm = False  # no member dies any more
        self._is_ending = False
        self._members: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Create the topics, and start producers and members."""
        await self._cluster.run_client(self._set_up(), "admin")
        for number in range(2):
            self._workload.start(f"producer{number}", self._workload.produce(self.tps))
        for number in range(_MEMBERS):
            name = f"sharer{number}"
            work = self._share(name, Random(f"{name} {self._cluster.rng.getrandbits(32)}"))
            self._members.append(self._cluster.run_client(work, name))

    async def _set_up(self) -> None:
        async with self._workload.client("admin") as client:
            await create_topic(client, TOPIC, partitions=_PARTITIONS, settings={})
            await create_topic(
                client,
                DEAD,
                partitions=_PARTITIONS,
                settings={"errors.deadletterqueue.group.enable": "true"},
            )
            group = Resource(ResourceKind.GROUP, GROUP)
            await alter_settings(client, group, assign=_SETTINGS, remove=[])

    # A member

    async def _share(self, name: str, rng: Random) -> None:
        while not self._is_ending:
            with contextlib.suppress(ClientError):
                async with self._workload.client(name) as client:
                    await self._consume(client, name, rng)

    async def _consume(self, client: Client, name: str, rng: Random) -> None:
        consumer = ShareConsumer(client, GROUP, [TOPIC], rng=rng)
        try:
            while not self._is_ending:
                records = await consumer.poll(rng.randint(1, 20), _POLL_MS)
                for record in records:
                    self._note_delivered(name, record)
                if rng.random() < 0.02 and not self._is_calm:
                    consumer.abandon()
                    return
                if rng.random() < 0.1:
                    await consumer.renew(records)
                await asyncio.sleep(rng.expovariate(1 / rng.choice(_WORK_S)))
                said = {
                    record: rng.choices(_KINDS, _WEIGHTS)[0]
                    for record in records
                    if rng.random() < 0.97
                }
                for record, kind in said.items():
                    consumer.acknowledge(record, kind, count=rng.random() < 0.8)
                await consumer.commit()
                for record, kind in said.items():
                    if record.failure is None:
                        self._note_acknowledged(name, record, kind)
        except ClientError:
            consumer.abandon()
            raise
        await consumer.close()

    def _note_delivered(self, name: str, record: ShareRecord) -> None:
        partition = self._cluster.stored_image().partition(record.tp)
        leader = None if partition is None else partition.leader
        hosts = {machine.host: machine.id for machine in self._cluster.machines}
        delivered = Delivered(
            name,
            record.tp,
            record.offset,
            (record.record.value or b"").decode(),
            record.delivery_count,
            self._cluster.loop.time(),
            is_by_leader=hosts[record.session.endpoint.host] == leader,
        )
        self._shares.delivered.append(delivered)
        self._cluster.trace("delivered", name, record.tp, record.offset, record.delivery_count)

    def _note_acknowledged(self, name: str, record: ShareRecord, kind: AcknowledgeKind) -> None:
        value, now_s = (record.record.value or b"").decode(), self._cluster.loop.time()
        self._shares.acknowledged.append(
            Acknowledged(name, record.tp, record.offset, value, kind.name.lower(), now_s)
        )
        self._cluster.trace("acknowledged", name, record.tp, record.offset, kind.name)

    # The end

    async def finish(self, within_s: float) -> None:
        """Stop producers, wait until every record is finished, and read the dead letters."""
        self._is_calm = True
        await self._workload.stop()
        await self._cluster.run_client(self._wait_finished(within_s), "checker")
        self._is_ending = True
        for member in self._members:
            await member
        await self._workload.finish(self.tps, {})
        await self._cluster.run_client(self._read_dead(), "checker")

    async def _wait_finished(self, within_s: float) -> None:
        loop = self._cluster.loop
        end_s = loop.time() + within_s
        async with self._workload.client("checker") as client:
            while loop.time() < end_s:
                self._shares.unfinished = await self._unfinished(client)
                if not self._shares.unfinished:
                    return
                await asyncio.sleep(_ASK_S)

    async def _unfinished(self, client: Client) -> str:
        """What is not finished; nothing if all is."""
        try:
            offsets = await describe_share_offsets(client, GROUP)
        except ClientError as problem:
            return str(problem)
        lags = {tp: offset.lag for tp, offset in offsets.items()}
        if lags != dict.fromkeys(self.tps, 0):
            return f"lags {lags}"
        archiving = [
            str(key)
            for machine in self._cluster.machines
            if machine.broker is not None and machine.is_running
            for key in machine.broker.services.share.archiving()
        ]
        return f"dead letters of {archiving}" if archiving else ""

    async def _read_dead(self) -> None:
        async with self._workload.client("checker") as client:
            self._shares.dead = await read_values(client, self._dead_tps)
