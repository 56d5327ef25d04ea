"""Share groups on two brokers: the leader of a partition, its state and its coordinators apart.

Broker 1 leads every partition of topics; partitions of internal topics are led by both.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fakes.broker_pair import TOPIC, BrokerPair, with_broker_pair
from ottla.client.admin import create_topic
from ottla.client.client import Client
from ottla.client.configs import Resource, ResourceKind, alter_settings, topic_resource
from ottla.client.errors import Refused
from ottla.client.groups import delete_group
from ottla.client.partitions import list_offsets
from ottla.client.producer import IdempotentProducer
from ottla.client.reader import ReadRange, read
from ottla.client.share_consumer import AcknowledgeKind, ShareConsumer, ShareRecord
from ottla.client.share_offsets import alter_share_offsets, describe_share_offsets
from ottla.coordinator.runtime.coordinator import shard_index
from ottla.coordinator.runtime.internal_topics import SHARE_STATE_TOPIC
from ottla.errors import ApiError
from ottla.model import BrokerId, Offset, TimestampMs, TopicPartition
from ottla.protocol.messages.offsets import EARLIEST
from ottla.queues.share_state import SharePartitionKey
from ottla.records.batch import Record

TP = TopicPartition(TOPIC, 0)
COUNT = 10
SETTINGS = {
    "share_coordinator_state_topic_num_partitions": "4",
    "share_coordinator_state_topic_replication_factor": "2",
    "offsets_topic_num_partitions": "4",
    "offsets_topic_replication_factor": "2",
    "default_replication_factor": "1",
}


class Sharing:
    """A client of a pair whose topic has ten records."""

    def __init__(self, pair: BrokerPair, client: Client) -> None:
        self.leader = pair.leader
        self.client = client

    def group_elsewhere(self) -> str:
        """The name of a group whose state of the topic is coordinated by broker 2."""
        image = self.leader.services.state.image
        shards = image.topics[SHARE_STATE_TOPIC].partitions
        for number in range(100):
            key = SharePartitionKey(f"group{number}", image.topics[TOPIC].id, 0)
            if shards[shard_index(str(key), len(shards))].leader == BrokerId(2):
                return key.group_id
        raise AssertionError("broker 2 leads no partition of the states")

    async def begin(self) -> str:
        """A group that reads from the beginning, and whose state is elsewhere."""
        async with ShareConsumer(self.client, "first", [TOPIC]) as first:
            await first.poll(wait_ms=100)  # creates the topics of coordinators
        group = self.group_elsewhere()
        await self.set_group(group, "share.auto.offset.reset", "earliest")
        return group

    async def set_group(self, group: str, name: str, value: str) -> None:
        resource = Resource(ResourceKind.GROUP, group)
        await alter_settings(self.client, resource, assign={name: value}, remove=[])

    async def produce(self, topic: str = TOPIC) -> None:
        producer = await IdempotentProducer.open(self.client)
        for number in range(COUNT):
            record = Record(value=str(number).encode(), timestamp_ms=TimestampMs(1))
            await producer.write(TopicPartition(topic, 0), [record])


def with_sharing(tmp_path: Path, scenario: Callable[[Sharing], Awaitable[None]]) -> None:
    async def run(pair: BrokerPair) -> None:
        endpoints = [pair.leader.advertised, pair.follower.advertised]
        async with Client(endpoints) as client:
            await scenario(Sharing(pair, client))

    with_broker_pair(tmp_path, run, **SETTINGS)


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    found: list[ShareRecord] = []
    while len(found) < count:
        found += await consumer.poll(count - len(found), 5000)
    return found


def test_acknowledgements_are_kept_by_another_broker(tmp_path: Path) -> None:
    async def scenario(sharing: Sharing) -> None:
        client, group = sharing.client, await sharing.begin()
        await sharing.produce()
        async with ShareConsumer(client, group, [TOPIC]) as consumer:
            for record in await take(consumer, COUNT):
                kind = AcknowledgeKind.ACCEPT if record.offset % 2 else AcknowledgeKind.RELEASE
                consumer.acknowledge(record, kind)
            assert await consumer.commit() == []
            again = await take(consumer, COUNT // 2)
            assert [(one.offset, one.delivery_count) for one in again] == [
                (offset, 2) for offset in range(0, COUNT, 2)
            ]
        (found,) = (await describe_share_offsets(client, group)).values()
        assert (found.start, found.lag) == (0, COUNT // 2)
        assert not sharing.leader.services.share.machines() or all(
            key.group_id != group
            for machine in sharing.leader.services.share.machines()
            for key in machine.states
        ), "its state is elsewhere"

    with_sharing(tmp_path, scenario)


def test_a_state_that_is_begun_anew_is_read_again_by_its_leader(tmp_path: Path) -> None:
    """A session that was left open keeps the state in the memory of the leader."""

    async def scenario(sharing: Sharing) -> None:
        client, group = sharing.client, await sharing.begin()
        await sharing.produce()
        left = ShareConsumer(client, group, [TOPIC])
        for record in await take(left, COUNT):
            left.acknowledge(record)
        assert await left.commit() == []
        await left._membership.leave()  # the group is empty, the session is not
        await alter_share_offsets(client, group, {TP: Offset(3)})

        async with ShareConsumer(client, group, [TOPIC]) as consumer:
            records = await take(consumer, COUNT - 3)
            assert [record.offset for record in records] == list(range(3, COUNT))
            for record in records:
                consumer.acknowledge(record)
            assert await consumer.commit() == []
        await left.close()
        await delete_group(client, group)
        with pytest.raises(Refused, match=r"does not exist|no share group"):
            await describe_share_offsets(client, group)

    with_sharing(tmp_path, scenario)


def test_dead_letters_go_to_a_partition_that_another_broker_leads(tmp_path: Path) -> None:
    async def scenario(sharing: Sharing) -> None:
        client, group = sharing.client, await sharing.begin()
        name = await topic_led_by(sharing, BrokerId(2), "dlq.jobs")
        enabled = {"errors.deadletterqueue.group.enable": "true"}
        await alter_settings(client, topic_resource(name), assign=enabled, remove=[])
        await sharing.set_group(group, "errors.deadletterqueue.topic.name", name)
        await sharing.produce()
        async with ShareConsumer(client, group, [TOPIC]) as consumer:
            for record in await take(consumer, COUNT):
                consumer.acknowledge(record, AcknowledgeKind.REJECT)
            assert await consumer.commit() == []
        dead = await values_of(client, TopicPartition(name, 0), COUNT)
        assert dead == [str(number) for number in range(COUNT)]

    with_sharing(tmp_path, scenario)


async def topic_led_by(sharing: Sharing, leader: BrokerId, prefix: str) -> str:
    """A new topic of one partition whose only replica is on this broker."""
    for number in range(20):
        name = f"{prefix}{number}"
        await create_topic(sharing.client, name, partitions=1, settings={})
        view = await sharing.client.describe([name])
        if view.topics[name].partitions[0].leader == leader:
            return name
    raise AssertionError(f"broker {leader} leads none")


async def values_of(client: Client, tp: TopicPartition, count: int) -> list[str]:
    found: list[str] = []
    async for batches in read(client, {tp: ReadRange(Offset(0), Offset(count))}):
        found += [(one.value or b"").decode() for batch in batches for one in batch.records()]
    return found


def test_records_go_once_every_coordinator_says_that_they_are_finished(tmp_path: Path) -> None:
    async def scenario(sharing: Sharing) -> None:
        client, group = sharing.client, await sharing.begin()
        await delete_group(client, "first")
        wanted = {"delete.acknowledged": "true"}
        await alter_settings(client, topic_resource(TOPIC), assign=wanted, remove=[])
        await sharing.produce()

        async def start() -> Offset | None:
            await sharing.leader.services.delete_acknowledged()
            return (await list_offsets(client, {TP: EARLIEST}))[TP]

        async with ShareConsumer(client, group, [TOPIC]) as consumer:
            records = await take(consumer, COUNT)
            assert await start() == 0
            for record in records[:6]:
                consumer.acknowledge(record)
            await consumer.commit()
            assert await start() == 6
            for record in records[6:]:
                consumer.acknowledge(record)
            await consumer.commit()
            assert await start() == COUNT
            async with ShareConsumer(client, "late", [TOPIC]) as late:
                await late._membership.join()  # it subscribes, and does not read
                await sharing.produce()
                for record in await take(consumer, COUNT):
                    consumer.acknowledge(record)
                await consumer.commit()
                assert await start() == COUNT, "one group has not begun"

    with_sharing(tmp_path, scenario)


def test_nothing_is_known_while_one_coordinator_does_not_respond(tmp_path: Path) -> None:
    """Its machine is gone, and the store has not noticed yet."""

    async def scenario(sharing: Sharing) -> None:
        await sharing.begin()
        services = sharing.leader.services
        topic = services.state.image.topics[TOPIC]
        assert await services.shard_queries.readers(topic) == {"first"}
        services.peers.close()
        with pytest.raises(ApiError, match="did not respond"):
            await services.shard_queries.readers(topic)
        with pytest.raises(ApiError, match="did not respond"):
            await services.shard_queries.starts(topic)

    with_sharing(tmp_path, scenario)
