"""Requests on partitions: what is sent, to which leader, and what its response means."""

import pytest

from fakes.scripted_cluster import ScriptedCluster
from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, Refused
from ottla.client.partitions import (
    Acks,
    Fetched,
    FetchLimits,
    Isolation,
    TransactionTag,
    by_topic,
    fetch,
    list_offsets,
    produce,
    produce_once,
    wait_received,
)
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Offset, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from ottla.protocol.messages.offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.batch import Record, build_batch

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
BATCH = bytes(build_batch([Record(timestamp_ms=TimestampMs(0), value=b"v")]))
TOPICS = {"orders": 2, "payments": 1}


def written(
    code: ErrorCode = ErrorCode.NONE, base_offset: int = 7, message: str | None = None
) -> ProduceResponse:
    result = PartitionProduceResponse(
        error_code=code, base_offset=base_offset, error_message=message
    )
    topic = TopicProduceResponse(name="orders", partition_responses=[result])
    return ProduceResponse(responses=[topic])


def producing(response: ProduceResponse | None) -> ScriptedCluster:
    return ScriptedCluster(TOPICS, {ApiKey.PRODUCE: lambda request: response})


# Produce


def test_a_batch_goes_to_the_leader_and_its_offset_comes_back() -> None:
    cluster = ScriptedCluster(TOPICS, {ApiKey.PRODUCE: lambda request: written()}, 2)

    async def scenario(client: Client) -> None:
        assert await produce(client, OTHER, BATCH) == 7

    cluster.run(scenario)
    assert cluster.asked(ApiKey.PRODUCE, broker=0) == []
    (request,) = cluster.asked(ApiKey.PRODUCE, broker=1)
    assert isinstance(request, ProduceRequest)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 1000, None)
    (topic,) = request.topic_data
    (data,) = topic.partition_data
    assert (topic.name, data.index, bytes(data.records or b"")) == ("orders", 1, BATCH)
    assert cluster.versions_asked(ApiKey.PRODUCE, broker=1) == [12], "the last with names"


def test_a_batch_that_may_have_been_written_is_not_sent_twice() -> None:
    def hang_up(request: ProduceRequest) -> None:
        cluster.brokers[0].hang_up()

    cluster = ScriptedCluster(TOPICS, {ApiKey.PRODUCE: hang_up})

    async def scenario(client: Client) -> None:
        with pytest.raises(ConnectionLost):
            await produce(client, TP, BATCH)

    cluster.run(scenario)
    assert len(cluster.asked(ApiKey.PRODUCE)) == 1


def test_a_refusal_that_says_why_is_told_in_the_brokers_words() -> None:
    cluster = producing(written(ErrorCode.INVALID_RECORD, message="record 3 has no key"))

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="orders-0: record 3 has no key") as refused:
            await produce(client, TP, BATCH)
        assert refused.value.code is ErrorCode.INVALID_RECORD

    cluster.run(scenario)


def test_only_produce_retries_and_produce_once_does_not() -> None:
    cluster = producing(written(ErrorCode.NOT_ENOUGH_REPLICAS))

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused):
            await produce_once(client, TP, BATCH)
        assert len(cluster.asked(ApiKey.PRODUCE)) == 1
        with pytest.raises(Refused):
            await produce(client, TP, BATCH)
        assert len(cluster.asked(ApiKey.PRODUCE)) > 2

    cluster.run(scenario)


def test_a_batch_of_a_transaction_names_it_in_a_version_of_its_protocol() -> None:
    cluster = producing(written())

    async def scenario(client: Client) -> None:
        for version_max in (11, 12):
            tag = TransactionTag("transfer", version_max)
            assert await produce_once(client, TP, BATCH, transaction=tag) == 7

    cluster.run(scenario)
    assert cluster.versions_asked(ApiKey.PRODUCE) == [11, 12]
    for request in cluster.asked(ApiKey.PRODUCE):
        assert isinstance(request, ProduceRequest)
        assert request.transactional_id == "transfer"


def test_without_acks_waiting_means_that_the_leaders_have_read_it() -> None:
    """A broker responds in order: any response is behind the batches."""
    cluster = ScriptedCluster(TOPICS, {ApiKey.PRODUCE: lambda request: None}, 2)

    async def scenario(client: Client) -> None:
        for tp in (TP, OTHER):
            assert await produce(client, tp, BATCH, Acks.NONE) is None
        await wait_received(client, [TP, OTHER])

    cluster.run(scenario)
    for broker in cluster.brokers:
        assert broker.names_asked()[-2:] == ["PRODUCE", "METADATA"]
    (request,) = cluster.asked(ApiKey.PRODUCE, broker=1)
    assert isinstance(request, ProduceRequest)
    assert request.acks == 0


# Fetch


def fetched(*partitions: FetchPartitionResponse, code: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    topic = FetchTopicResponse(topic="orders", partitions=list(partitions))
    return FetchResponse(error_code=code, responses=[topic])


def fetching(response: FetchResponse) -> ScriptedCluster:
    return ScriptedCluster(TOPICS, {ApiKey.FETCH: lambda request: response})


def test_a_fetch_asks_for_all_positions_within_its_limits() -> None:
    cluster = fetching(FetchResponse())
    positions = {TP: Offset(5), OTHER: Offset(6), TopicPartition("payments", 0): Offset(7)}
    limits = FetchLimits(wait_ms_max=1, bytes_min=2, bytes_max=3, partition_bytes_max=4)

    async def scenario(client: Client) -> None:
        found = await fetch(
            client,
            BrokerId(0),
            positions,
            limits=limits,
            isolation=Isolation.READ_COMMITTED,
        )
        assert found == {}, "no partition has anything new"

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.FETCH)
    assert isinstance(request, FetchRequest)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (1, 2, 3)
    assert request.isolation_level == 1
    assert {
        (topic.topic, item.partition, item.fetch_offset, item.partition_max_bytes)
        for topic in request.topics
        for item in topic.partitions
    } == {("orders", 0, 5, 4), ("orders", 1, 6, 4), ("payments", 0, 7, 4)}
    assert len(request.topics) == 2
    assert cluster.versions_asked(ApiKey.FETCH) == [12], "the last with names"


def test_a_fetch_returns_batches_marks_and_aborted_transactions() -> None:
    aborted = [AbortedTransaction(producer_id=9, first_offset=4)]
    cluster = fetching(
        fetched(
            FetchPartitionResponse(
                partition_index=0,
                high_watermark=20,
                records=BATCH,
                aborted_transactions=aborted,
            ),
            FetchPartitionResponse(partition_index=1, high_watermark=30, records=None),
        )
    )

    async def scenario(client: Client) -> None:
        found = await fetch(client, BrokerId(0), {TP: Offset(5), OTHER: Offset(6)})
        assert bytes(found[TP].batches) == BATCH
        assert found[TP].aborted == ((4, 9),)
        assert found[TP].high_watermark == 20
        assert found[OTHER] == Fetched(b"", (), Offset(30))

    cluster.run(scenario)


def test_an_offset_outside_of_the_log_is_refused_with_both_ends() -> None:
    gone = FetchPartitionResponse(
        partition_index=0,
        error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
        log_start_offset=10,
        high_watermark=20,
    )
    cluster = fetching(fetched(gone))

    async def scenario(client: Client) -> None:
        text = "orders-0: offset 5 is out of range; the log begins at 10 and ends at 20"
        with pytest.raises(Refused, match=text) as refused:
            await fetch(client, BrokerId(0), {TP: Offset(5)})
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    cluster.run(scenario)


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_error_of_a_fetch_or_of_one_partition_is_raised(is_whole: bool) -> None:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    bad = FetchPartitionResponse(partition_index=1, error_code=code)
    response = fetched(code=code) if is_whole else fetched(FetchPartitionResponse(), bad)

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="fetch: " if is_whole else "orders-1: ") as refused:
            await fetch(client, BrokerId(0), {TP: Offset(5), OTHER: Offset(5)})
        assert refused.value.code is code

    fetching(response).run(scenario)


# Offsets


def offsets_of(request: ListOffsetsRequest) -> ListOffsetsResponse:
    """The partition plus ten for a special offset; any other timestamp is behind the end."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=item.partition_index,
                        offset=item.partition_index + 10 if item.timestamp < 0 else -1,
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_each_leader_is_asked_once_for_the_offsets_of_its_partitions() -> None:
    cluster = ScriptedCluster(
        {"orders": 4, "payments": 1}, {ApiKey.LIST_OFFSETS: offsets_of}, broker_count=2
    )
    tps = [TopicPartition("orders", index) for index in range(4)]
    payments = TopicPartition("payments", 0)

    async def scenario(client: Client) -> None:
        wanted = {**dict.fromkeys(tps, LATEST), payments: EARLIEST}
        found = await list_offsets(client, wanted, Isolation.READ_COMMITTED)
        assert found == {tp: tp.partition + 10 for tp in wanted}

    cluster.run(scenario)
    sent = []
    for broker in (0, 1):
        (request,) = cluster.asked(ApiKey.LIST_OFFSETS, broker)
        assert isinstance(request, ListOffsetsRequest)
        assert (request.replica_id, request.isolation_level) == (-1, 1)
        sent.append(
            {
                TopicPartition(topic.name, item.partition_index): item.timestamp
                for topic in request.topics
                for item in topic.partitions
            }
        )
    assert sent == [
        {tps[0]: LATEST, tps[2]: LATEST, payments: EARLIEST},
        {tps[1]: LATEST, tps[3]: LATEST},
    ]


def test_where_every_record_is_older_there_is_no_offset() -> None:
    cluster = ScriptedCluster(TOPICS, {ApiKey.LIST_OFFSETS: offsets_of})

    async def scenario(client: Client) -> None:
        assert await list_offsets(client, {TP: 1_700_000_000_000}) == {TP: None}

    cluster.run(scenario)


def test_a_request_for_offsets_survives_a_lost_connection() -> None:
    def hang_up_once(request: ListOffsetsRequest) -> ListOffsetsResponse | None:
        (broker,) = cluster.brokers
        if broker.connection_count == 1:
            broker.hang_up()
            return None
        return offsets_of(request)

    cluster = ScriptedCluster(TOPICS, {ApiKey.LIST_OFFSETS: hang_up_once})

    async def scenario(client: Client) -> None:
        assert await list_offsets(client, {TP: LATEST}) == {TP: 10}

    cluster.run(scenario)
    assert cluster.brokers[0].connection_count == 2


def test_an_error_for_one_partition_is_raised_with_its_name() -> None:
    def refuse(request: ListOffsetsRequest) -> ListOffsetsResponse:
        response = offsets_of(request)
        response.topics[0].partitions[1].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return response

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="orders-1: topic authorization failed"):
            await list_offsets(client, {TP: LATEST, OTHER: LATEST})

    ScriptedCluster(TOPICS, {ApiKey.LIST_OFFSETS: refuse}).run(scenario)


def test_partitions_are_grouped_by_topic_in_their_order() -> None:
    payments = TopicPartition("payments", 0)
    assert by_topic([OTHER, payments, TP]) == {"orders": [OTHER, TP], "payments": [payments]}
    assert by_topic([]) == {}
