"""A group reader delivers at least once: it commits what was processed, and never goes back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.client.client import Client
from ottla.client.group_member import Generation, GroupMember
from ottla.client.group_offsets import Membership
from ottla.client.group_reader import Assigned, GroupEvent, GroupReader, Lost, Moved, Revoked
from ottla.errors import ErrorCode
from ottla.model import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.coordination import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from ottla.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.offsets import (
    EARLIEST,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.records.batch import (
    Marker,
    MarkerKind,
    Record,
    build_batch,
    build_marker,
    read_header,
    stamp,
)

TP = TopicPartition("orders", 0)
LOG_START, LOG_END = 2, 6


class Member(GroupMember):
    """A member that is given one partition whenever it joins; `is_current` turns commits down."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, "g", ["orders"])
        self.commits: list[dict[TopicPartition, Offset]] = []
        self.is_joined = False
        self.is_current = True
        self.has_left = False

    @property
    def must_rejoin(self) -> bool:
        return not self.is_joined

    async def join(self) -> Generation:
        self.is_joined = self.is_current = True
        return Generation(Membership("m", 1), frozenset({TP}))

    async def commit(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        if self.is_current:
            self.commits.append(dict(offsets))
        return self.is_current

    async def leave(self) -> None:
        self.has_left = True


class Log:
    """A partition of single-record batches, and the offset that the group has committed in it.

    At one offset there may be the marker of a transaction instead.
    """

    def __init__(self, committed: int, marker_at: int | None) -> None:
        self.committed = committed
        self.marker_at = marker_at

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        wanted = request.topics[0].partitions[0].timestamp
        offset = LOG_START if wanted == EARLIEST else LOG_END
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])]
        )

    def offset_fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        found = OffsetFetchResponsePartitions(partition_index=0, committed_offset=self.committed)
        topic = OffsetFetchResponseTopics(name="orders", partitions=[found])
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    def fetch(self, request: FetchRequest) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        batch = b""
        if offset < LOG_END:
            built = build_batch([Record(timestamp_ms=TimestampMs(0), value=b"%d" % offset)])
            if offset == self.marker_at:
                built = build_marker(
                    Marker(MarkerKind.COMMIT, 0),
                    producer_id=ProducerId(7),
                    producer_epoch=ProducerEpoch(0),
                    timestamp_ms=TimestampMs(0),
                )
            stamp(built, Offset(offset), LeaderEpoch(0))
            batch = bytes(built)
            assert read_header(batch).base_offset == offset
        found = FetchPartitionResponse(partition_index=0, records=batch, high_watermark=LOG_END)
        return FetchResponse(responses=[FetchTopicResponse(topic="orders", partitions=[found])])


Scenario = Callable[[GroupReader, Member, list[GroupEvent]], Awaitable[None]]


def with_reader(scenario: Scenario, *, committed: int = -1, marker_at: int | None = None) -> None:
    async def run() -> None:
        metadata, log = OneTopic("orders"), Log(committed, marker_at)

        def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
            host, port = broker.endpoint
            found = Coordinator(
                key=request.key, node_id=0, host=host, port=port, error_code=ErrorCode.NONE
            )
            return FindCoordinatorResponse(coordinators=[found], host=host, port=port)

        broker = AnsweringBroker(
            {
                ApiKey.METADATA: metadata,
                ApiKey.FIND_COORDINATOR: find,
                ApiKey.LIST_OFFSETS: log.list_offsets,
                ApiKey.OFFSET_FETCH: log.offset_fetch,
                ApiKey.FETCH: log.fetch,
            }
        )
        async with broker, asyncio.timeout(10):
            metadata.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=2) as client:
                member, events = Member(client), list[GroupEvent]()
                await scenario(GroupReader(member, note=events.append), member, events)

    asyncio.run(run())


def test_a_new_group_begins_at_the_start_and_commits_that_at_once() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (reading,) = await reader.next_readings()
        assert [record.offset for batch in reading.batches for record in batch.records()] == [
            LOG_START
        ]
        assert reading.end == LOG_START + 1
        assert member.commits == [{TP: LOG_START}]
        assert events == [Assigned((TP,), 1)]

    with_reader(scenario)


def test_reading_goes_on_at_the_committed_offset() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (reading,) = await reader.next_readings()
        assert reading.batches[0].records()[0].offset == 4
        assert member.commits == []

    with_reader(scenario, committed=4)


@pytest.mark.parametrize(("committed", "found"), [(0, LOG_START), (9, LOG_END)])
def test_a_committed_offset_out_of_range_moves_to_the_nearest_end(
    committed: int, found: int
) -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        await reader.next_readings()
        assert events[-1] == Moved(TP, Offset(committed), Offset(found))
        assert member.commits == [{TP: found}]

    with_reader(scenario, committed=committed)


def test_only_what_was_processed_is_committed() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (first,) = await reader.next_readings()
        await reader.next_readings()
        assert await reader.commit()
        assert member.commits == [{TP: LOG_START}]
        reader.note_done(TP, first.end)
        assert await reader.commit()
        assert await reader.commit()
        assert member.commits == [{TP: LOG_START}, {TP: LOG_START + 1}]

    with_reader(scenario)


def test_a_marker_is_processed_once_it_is_read_if_all_before_it_was_processed() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (first,) = await reader.next_readings()
        reader.note_done(TP, first.end)
        assert await reader.next_readings() == []
        assert await reader.commit()
        assert member.commits == [{TP: LOG_START}, {TP: LOG_START + 2}]

    with_reader(scenario, marker_at=LOG_START + 1)


def test_a_marker_does_not_commit_the_records_before_it_that_are_being_processed() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (first,) = await reader.next_readings()
        assert await reader.next_readings() == []
        assert await reader.commit()
        assert member.commits == [{TP: LOG_START}]
        reader.note_done(TP, first.end)

    with_reader(scenario, marker_at=LOG_START + 1)


def test_what_was_processed_never_goes_back() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        await reader.next_readings()
        reader.note_done(TP, Offset(LOG_START + 1))
        with pytest.raises(AssertionError, match="orders-0: done goes back from 3 to 2"):
            reader.note_done(TP, Offset(LOG_START))

    with_reader(scenario)


def test_before_a_rebalance_what_was_processed_is_committed() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (reading,) = await reader.next_readings()
        reader.note_done(TP, reading.end)
        member.is_joined = False
        await reader.next_readings()
        assert member.commits[:2] == [{TP: LOG_START}, {TP: LOG_START + 1}]
        assert events[1] == Revoked((TP,))

    with_reader(scenario)


def test_a_commit_of_an_ended_generation_loses_the_partitions() -> None:
    async def scenario(reader: GroupReader, member: Member, events: list[GroupEvent]) -> None:
        (reading,) = await reader.next_readings()
        reader.note_done(TP, reading.end)
        member.is_current = False
        assert not await reader.commit()
        await reader.close()
        assert events[-1] == Lost((TP,), "the generation has ended")
        assert member.has_left
        reader.note_done(TP, Offset(LOG_END))  # no longer ours, so it is ignored

    with_reader(scenario)
