"""Dead letters that a broker had begun to write before it was started."""

import asyncio
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.errors import ApiError
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from ottla.model import Sequence as SequenceNumber
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.queues.share_state import (
    Cause,
    DeliveryState,
    Sender,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)
from ottla.records.batch import Record, batches, build_batch
from ottla.replication.partition import ACKS_ALL

SOURCE, TARGET = TopicPartition("jobs", 0), TopicPartition("dlq.jobs", 0)
PRODUCER = ProducerId(77_777)  # no broker of a test gives out so many


async def set_up(handled: Handled) -> None:
    for tp in (SOURCE, TARGET):
        await handled.create_topic(tp.topic)
    for kind, name, setting, value in (
        (2, "dlq.jobs", "errors.deadletterqueue.group.enable", "true"),
        (32, "g", "errors.deadletterqueue.topic.name", "dlq.jobs"),
    ):
        config = IncrementalAlterableConfig(name=setting, config_operation=0, value=value)
        resource = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = await handled.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, 1)
        assert not response.responses[0].error_code, response
    append(handled, SOURCE, 3)


def append(handled: Handled, tp: TopicPartition, count: int, sequence: int = -1) -> None:
    batch = build_batch(
        [Record(timestamp_ms=TimestampMs(5), value=b"%d" % at) for at in range(count)],
        producer_id=PRODUCER if sequence >= 0 else ProducerId(-1),
        producer_epoch=ProducerEpoch(0 if sequence >= 0 else -1),
        base_sequence=SequenceNumber(sequence),
    )
    handled.services.replicas.leaders[tp].append(memoryview(batch), ACKS_ALL, TimestampMs(5))


async def crash_while_sending(handled: Handled, sequence: int, begun_ms: int) -> SharePartitionKey:
    """The state of a share partition with two records in a batch that was begun."""
    services = handled.services
    topics = services.state.image.topics
    key = SharePartitionKey("g", topics["jobs"].id, 0)
    sender = Sender(PRODUCER, sequence, topics["dlq.jobs"].id, 0, begun_ms)
    dead = StateBatch(
        Offset(0), Offset(1), DeliveryState.ARCHIVING, 5, 0, Cause.REJECTED, is_sending=True
    )
    while True:
        try:
            await services.share.find(str(key))
            await services.share.run(
                str(key), lambda s, ticket, now: s.initialize(ticket, key, 1, Offset(0), now)
            )
            break
        except ApiError:
            await asyncio.sleep(0.01)
    write = StateWrite(Offset(0), 0, (dead,), sender)
    await services.share.run(
        str(key), lambda s, ticket, now: s.write(ticket, key, 1, 0, write, now)
    )
    return key


async def wait_archived(handled: Handled) -> None:
    await handled.services.resume_dead_letters()
    while True:
        if not handled.services.share.archiving():
            return
        await asyncio.sleep(0.01)


def written(handled: Handled) -> list[tuple[int, int]]:
    """Producer ids and sizes of the batches in the dead-letter topic."""
    partition = handled.services.replicas.leaders[TARGET]
    end = partition.log.end_offset
    found = partition.log.read(Offset(0), end, 1 << 20, at_least_one=True)
    assert found is not None
    data = partition.log.read_bytes(found)
    return [(header.producer_id, header.record_count) for header, _ in batches(data)]


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["remembered", "forgotten"])
def test_a_batch_that_arrived_before_the_crash_is_not_written_again(
    tmp_path: Path, is_forgotten: bool
) -> None:
    """A destination that has forgotten the producer is searched: the batch was begun long ago."""

    async def scenario(handled: Handled) -> None:
        await set_up(handled)
        append(handled, TARGET, 2, sequence=4)
        now_ms = handled.services.clock.now_ms()
        if is_forgotten:
            producers = handled.services.replicas.leaders[TARGET].log.producers
            producers.expire(TimestampMs(now_ms), 0)
            assert producers.get(PRODUCER) is None
        await crash_while_sending(handled, 4, begun_ms=0 if is_forgotten else now_ms)
        await wait_archived(handled)
        assert written(handled) == [(PRODUCER, 2)]

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_a_destination_that_has_lost_its_end_gets_another_producer(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await set_up(handled)
        append(handled, TARGET, 1, sequence=0)  # the next one should be 1
        now_ms = handled.services.clock.now_ms()
        await crash_while_sending(handled, 9, begun_ms=now_ms)
        await wait_archived(handled)
        first, second = written(handled)
        assert first == (PRODUCER, 1)
        assert second[0] != PRODUCER
        assert second[1] == 2

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")
