"""Share fetches: locks that end, logs that are pruned, brokers with peers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.handled import Handled, handle
from ottla.broker import led_share_partition
from ottla.broker.share_partitions import SharePartitions
from ottla.broker.share_reading import ReadBatches, duration_ms
from ottla.broker.share_settings import GroupSettings
from ottla.coordinator.runtime.internal_topics import SHARE_STATE_TOPIC
from ottla.errors import CoordinatorNotAvailable, ErrorCode, NotCoordinator
from ottla.model import Offset, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
)
from ottla.queues.acknowledgements import RETRY_DELAY_MAX_MS
from ottla.queues.share_sessions import SharedPartition
from ottla.queues.share_state import DeliveryState, SharePartitionKey, StateBatch
from ottla.records.batch import Marker, MarkerKind, Record, batches, build_batch
from ottla.replication.partition import ACKS_ALL
from ottla.storage.log import Log
from ottla.storage.log_read import FileRange

TP = TopicPartition("t", 0)
ACCEPT, RELEASE = 1, 2
STRICT = 1


class Member:
    """A member of the group "g" that reads one partition."""

    def __init__(self, handled: Handled, member_id: str = "m") -> None:
        self.handled = handled
        self.member_id = member_id
        self.topic_id = handled.services.state.image.topics["t"].id
        self.epoch = 0

    async def join(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, subscribed_topic_names=["t"]
        )
        response = await self.handled.call(ApiKey.SHARE_GROUP_HEARTBEAT, request, 1)
        assert not response.error_code, response

    async def take(
        self, wait_ms: int = 10_000, *, records_max: int = 500
    ) -> list[tuple[int, int, int]]:
        found = await self.take_of([0], wait_ms, records_max=records_max)
        return [acquired for _, acquired in found]

    async def take_of(
        self, indexes: Sequence[int], wait_ms: int = 10_000, *, records_max: int = 500
    ) -> list[tuple[int, tuple[int, int, int]]]:
        """Add partitions, and fetch; what was acquired of each, with its index."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        partitions = [ShareFetchPartition(partition_index=index) for index in indexes]
        request = ShareFetchRequest(
            group_id="g",
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            max_records=records_max,
            topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=partitions)],
        )
        response = await self.handled.call(ApiKey.SHARE_FETCH, request, 2)
        assert not response.error_code, response
        return [
            (found.partition_index, (one.first_offset, one.last_offset, one.delivery_count))
            for topic in response.responses
            for found in topic.partitions
            for one in found.acquired_records
        ]

    async def take_one(self) -> tuple[int, bytes]:
        """The offset of the one record of a strict fetch, and its batch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        partition = ShareFetchPartition(partition_index=0)
        request = ShareFetchRequest(
            group_id="g",
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait_ms=10_000,
            max_records=1,
            share_acquire_mode=STRICT,
            topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=[partition])],
        )
        response = await self.handled.call(ApiKey.SHARE_FETCH, request, 2)
        (found,) = response.responses[0].partitions
        (acquired,) = found.acquired_records
        assert acquired.first_offset == acquired.last_offset, found
        return acquired.first_offset, bytes(found.records)

    async def acknowledge(self, first: int, last: int, types: Sequence[int]) -> int:
        epoch, self.epoch = self.epoch, self.epoch + 1
        batch = AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(types)
        )
        partition = ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        topic = ShareAcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])
        request = ShareAcknowledgeRequest(
            group_id="g", member_id=self.member_id, share_session_epoch=epoch, topics=[topic]
        )
        response = await self.handled.call(ApiKey.SHARE_ACKNOWLEDGE, request, 2)
        return int(response.responses[0].partitions[0].error_code)


async def begin(handled: Handled, *members: str, partitions: int = 1) -> list[Member]:
    await handled.create_topic("t", partitions)
    await handled.find_coordinators()
    await handled.begin_at_the_first_record("g")
    made = [Member(handled, member) for member in members]
    for member in made:
        await member.join()
    return made


def put(handled: Handled, count: int, *, index: int = 0) -> None:
    partition = handled.services.replicas.leaders["t", index]
    batch = build_batch([Record(value=b"x") for _ in range(count)])
    partition.append(memoryview(batch), ACKS_ALL, TimestampMs(1))


async def committed(handled: Handled, index: int) -> None:
    """Return when everything that was put can be read."""
    partition, more = handled.services.replicas.leaders["t", index], asyncio.Event()
    partition.add_reader(more.set)
    while partition.high_watermark < partition.log.end_offset:
        await more.wait()
        more.clear()
    partition.remove_reader(more.set)


def test_a_state_that_is_being_read_is_read_once_although_no_session_uses_it(
    tmp_path: Path,
) -> None:
    """Each share partition in memory writes the dead letters that it finds in its state."""

    async def scenario(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        partitions = handled.services.share_partitions
        key = SharePartitionKey("g", member.topic_id, 0)
        loaded = asyncio.Event()
        led = partitions.find(key)
        led.waiting[loaded.set] = None
        partitions.forget_unused("g", SharedPartition(member.topic_id, 0))
        assert partitions.find(key) is led
        await loaded.wait()
        assert led.state is not None
        assert partitions.counts().partitions == 0, "forgotten, now that nothing is under way"

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of 200 ms, which no setting allows."""
    known = SharePartitions.settings_of

    def with_short_locks(partitions: SharePartitions, group_id: str) -> GroupSettings:
        found = known(partitions, group_id)
        return replace(found, limits=found.limits._replace(lock_ms=200))

    monkeypatch.setattr(SharePartitions, "settings_of", with_short_locks)


async def outlived_lock(handled: Handled) -> tuple[Member, Member]:
    """Two members; the second one has records that the first one had until its lock ended."""
    slow, fast = await begin(handled, "slow", "fast")
    assert await slow.take(100) == []
    put(handled, 2)
    assert await slow.take() == [(0, 1, 1)]
    assert await fast.take(60_000) == [(0, 1, 2)]
    return slow, fast


@pytest.mark.usefixtures("short_locks")
def test_a_lock_that_ends_lets_another_member_have_the_record(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        slow, fast = await outlived_lock(handled)
        assert await slow.acknowledge(0, 1, [ACCEPT]) == ErrorCode.INVALID_RECORD_STATE
        assert await fast.acknowledge(0, 1, [ACCEPT]) == 0

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


@pytest.mark.usefixtures("short_locks")
def test_what_another_member_has_finished_is_refused_also_below_the_start(tmp_path: Path) -> None:
    """Kafka ignores the late acknowledgement there, and so tells both that they have finished."""

    async def scenario(handled: Handled) -> None:
        slow, fast = await outlived_lock(handled)
        assert await fast.acknowledge(0, 1, [ACCEPT]) == 0
        assert await slow.acknowledge(0, 1, [ACCEPT]) == ErrorCode.INVALID_RECORD_STATE
        assert await fast.acknowledge(0, 1, [ACCEPT]) == 0, "its own are ignored, as in Kafka"

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_records_of_a_state_that_is_read_again_are_held_by_those_who_get_them_then(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        first, second = await begin(handled, "first", "second")
        assert await first.take(100) == []
        put(handled, 4)
        assert await first.take() == [(0, 3, 1)]
        partitions = handled.services.share_partitions
        key = SharePartitionKey("g", first.topic_id, 0)
        partitions.drop(partitions.find(key), CoordinatorNotAvailable("not written"))
        assert await second.take(records_max=2) == [(0, 3, 1)]
        assert await second.acknowledge(0, 1, [ACCEPT]) == 0
        assert await first.acknowledge(1, 1, [ACCEPT]) == ErrorCode.INVALID_RECORD_STATE
        assert await second.acknowledge(2, 3, [RELEASE]) == 0
        assert await first.take() == [(2, 3, 2)]
        assert await first.acknowledge(2, 3, [ACCEPT]) == 0
        assert await first.acknowledge(2, 3, [ACCEPT]) == 0, "it got these again"
        assert await first.acknowledge(0, 0, [ACCEPT]) == ErrorCode.INVALID_RECORD_STATE

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_no_record_waits_longer_than_any_may_though_the_clock_was_set_back(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        partitions = handled.services.share_partitions
        year_ms = 365 * 24 * 3_600_000
        ends = [handled.services.clock.now_ms() + ahead_ms for ahead_ms in (1000, year_ms, -1000)]
        batches = [
            StateBatch(Offset(at), Offset(at), DeliveryState.AVAILABLE, 1, not_before_ms=end_ms)
            for at, end_ms in enumerate(ends)
        ]
        soon, latest, past = [
            one.not_before_ms - partitions.now_ms() for one in partitions._restored(batches)
        ]
        assert past < 0 < soon <= 1000
        assert RETRY_DELAY_MAX_MS - 1000 < latest <= RETRY_DELAY_MAX_MS

    handle(tmp_path, scenario)


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_record_that_may_kill_its_consumer_comes_with_none_of_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    known = SharePartitions.settings_of

    def ordered(partitions: SharePartitions, group_id: str) -> GroupSettings:
        found = known(partitions, group_id)
        limits = found.limits._replace(deliveries_max=3, backoff_ms=0)
        return replace(found, config=replace(found.config, share_ordering=ordering), limits=limits)

    async def scenario(handled: Handled) -> None:
        monkeypatch.setattr(SharePartitions, "settings_of", ordered)
        (member,) = await begin(handled, "m", partitions=2)
        assert await member.take_of([0, 1], 1) == []
        put(handled, 1)
        for delivery in (1, 2):
            assert await member.take_of([]) == [(0, (0, 0, delivery))]
            assert await member.acknowledge(0, 0, [RELEASE]) == 0
        put(handled, 1, index=1)
        await committed(handled, 1)
        assert await member.take_of([]) == [(1, (0, 0, 1))], "whose turn it is"
        put(handled, 1, index=1)
        await committed(handled, 1)
        assert await member.take_of([]) == [(0, (0, 0, 3))]
        assert await member.acknowledge(0, 0, [RELEASE]) == 0
        for index in range(2):
            put(handled, 1, index=index)
            await committed(handled, index)
        assert len(await member.take_of([])) == 2, "others come together"

    handle(tmp_path, scenario)


def test_a_long_stretch_without_records_is_passed_in_several_turns(tmp_path: Path) -> None:
    """Markers alone, a megabyte and more: the fetch goes on by itself to the record behind them."""

    async def scenario(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        assert await member.take(100) == []
        partition = handled.services.replicas.leaders[TP]
        marker = Marker(MarkerKind.COMMIT, 0)
        for _ in range(20_000):  # of 78 bytes each
            partition.append_marker(marker, ProducerId(1), ProducerEpoch(0), TimestampMs(1))
        put(handled, 1)
        assert await member.take(60_000) == [(20_000, 20_000, 1)]

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_a_fetch_of_one_record_looks_at_few_batches_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that walks over all batches of a large chunk takes milliseconds for one record."""
    looked_at: list[int] = []  # bytes of each read

    def counted(data: bytes, end: Offset) -> ReadBatches:
        looked_at.append(len(data))
        return ReadBatches(data, end)

    async def scenario(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        assert await member.take(100) == []
        for _ in range(1_000):  # of 69 bytes each
            put(handled, 1)
        monkeypatch.setattr(led_share_partition, "ReadBatches", counted)
        for offset in range(3):
            assert await member.take(records_max=1) == [(offset, offset, 1)]
        assert len(looked_at) == 1, "the batches behind are looked at once for all fetches"
        assert 0 < looked_at[0] <= 4096

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_fetches_of_one_record_after_the_other_share_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read and not acquired is kept, until a fetch begins elsewhere."""
    read_at: list[int] = []

    def read(log: Log, start: Offset, *others: Any, **more: Any) -> FileRange | None:
        if log.tp == TP:
            read_at.append(start)
        return log_read(log, start, *others, **more)

    async def scenario(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        assert await member.take(100) == []
        for count in (1, 3, 2):  # batches, in one of which a fetch ends in the middle
            put(handled, count)
        log = handled.services.replicas.leaders[TP].log
        found = log.read(Offset(0), log.end_offset, 1 << 20, at_least_one=True)
        assert found is not None
        sent = [bytes(batch) for _, batch in batches(log.read_bytes(found))]
        monkeypatch.setattr(Log, "read", read)
        for offset, batch in enumerate([sent[0], *3 * [sent[1]], *2 * [sent[2]]]):
            assert await member.take_one() == (offset, batch)
        assert read_at == [0]
        put(handled, 1)
        assert (await member.take_one())[0] == 6, "appended after the read"
        assert await member.acknowledge(2, 2, [RELEASE]) == 0
        assert await member.take_one() == (2, sent[1]), "lower than what is kept"
        assert read_at == [0, 6, 2]
        put(handled, 1)
        assert (await member.take_one())[0] == 7
        assert read_at == [0, 6, 2, 7], "what was kept began elsewhere"

    log_read = Log.read
    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")


def test_the_log_of_states_is_pruned_and_read_again(tmp_path: Path) -> None:
    key: list[SharePartitionKey] = []

    async def write(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        assert await member.take(100) == []
        put(handled, 100)
        assert await member.take() == [(0, 99, 1)]
        share = handled.services.share
        state_log = handled.services.replicas.leaders[TopicPartition(SHARE_STATE_TOPIC, 0)].log
        for round_number in range(3):
            for offset in range(10):
                at = round_number * 10 + offset
                assert await member.acknowledge(at, at, [ACCEPT]) == 0
            await share.expire()
        assert state_log.start_offset > 0
        key.append(SharePartitionKey("g", member.topic_id, 0))
        assert share.machines()[0].states[key[0]].snapshot.start_offset == 30

    async def read(handled: Handled) -> None:
        handled.services.open_coordinators()
        while True:  # until it has read its log
            if handled.services.share.machines():
                break
            await asyncio.sleep(0.01)
        found = handled.services.share.machines()[0].states[key[0]].snapshot
        assert found.start_offset == 30
        assert all(batch.state is DeliveryState.ACKNOWLEDGED for batch in found.batches)

    settings = {"share_coordinator_state_topic_num_partitions": "1"}
    handle(tmp_path, write, **settings)
    handle(tmp_path, read, **settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT0S", 0),
        ("PT1.5S", 1500),
        ("P1D", 86_400_000),
        ("P1DT2H3M4S", 93_784_000),
        ("PT90M", 5_400_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


def test_a_share_partition_whose_state_could_not_be_written_is_dropped(tmp_path: Path) -> None:
    """It is not known what was written: the next fetch reads the state again."""

    async def scenario(handled: Handled) -> None:
        (member,) = await begin(handled, "m")
        assert await member.take(100) == []
        partitions = handled.services.share_partitions
        key = SharePartitionKey("g", member.topic_id, 0)
        led = partitions.find(key)
        assert led.note_written(None) is None
        assert partitions.find(key) is led
        problem = led.note_written(NotCoordinator("the shard was dropped"))
        assert problem is not None
        assert problem.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert led.problem is problem
        assert led.state is None
        assert partitions.find(key) is not led

    handle(tmp_path, scenario, share_coordinator_state_topic_num_partitions="1")
