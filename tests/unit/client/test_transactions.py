"""Requests on transactions: listed at every broker, described and fenced by their coordinator."""

import pytest

from fakes.answering_broker import Script
from fakes.scripted_cluster import ScriptedCluster
from ottla.client.client import Client
from ottla.client.errors import Refused
from ottla.client.transactions import (
    OpenTransaction,
    TransactionDescription,
    TransactionSummary,
    abort_in_partition,
    describe_transaction,
    describe_transactions,
    fence_producer,
    list_transactions,
    open_transactions,
)
from ottla.errors import ErrorCode
from ottla.model import Offset, ProducerId, TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerState,
)
from ottla.protocol.messages.transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TP = TopicPartition("orders", 1)  # led by the second broker of two


def cluster_with(scripts: dict[ApiKey, Script]) -> ScriptedCluster:
    return ScriptedCluster({"orders": 2}, scripts, broker_count=2)


# Listing


def test_transactions_of_all_brokers_are_listed_by_name() -> None:
    names = iter(("b", "a"))

    def listed(request: ListTransactionsRequest) -> ListTransactionsResponse:
        one = ListedTransaction(
            transactional_id=next(names), producer_id=7, transaction_state="Ongoing"
        )
        return ListTransactionsResponse(transaction_states=[one])

    cluster = cluster_with({ApiKey.LIST_TRANSACTIONS: listed})

    async def scenario(client: Client) -> None:
        found = await list_transactions(client, states=["Ongoing"], pattern="o.*", open_for_ms=5)
        assert found == [
            TransactionSummary(transactional_id=name, producer_id=ProducerId(7), state="Ongoing")
            for name in ("a", "b")
        ]

    cluster.run(scenario)
    for broker in (0, 1):
        (request,) = cluster.asked(ApiKey.LIST_TRANSACTIONS, broker)
        assert isinstance(request, ListTransactionsRequest)
        assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [])
        assert (request.duration_filter, request.transactional_id_pattern) == (5, "o.*")


def test_a_state_that_no_broker_knows_is_refused() -> None:
    response = ListTransactionsResponse(unknown_state_filters=["Open", "Shut"])
    cluster = cluster_with({ApiKey.LIST_TRANSACTIONS: lambda request: response})

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="transactions: unknown state: Open, Shut"):
            await list_transactions(client, states=["Open", "Shut"])

    cluster.run(scenario)


def test_a_coordinator_that_still_loads_is_asked_again() -> None:
    codes = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    cluster = cluster_with(
        {ApiKey.LIST_TRANSACTIONS: lambda request: ListTransactionsResponse(error_code=codes.pop())}
    )

    async def scenario(client: Client) -> None:
        assert await list_transactions(client) == []

    cluster.run(scenario)
    assert codes == []


# Describing


def described(request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Every id has a transaction open, but `idle`, which has none, and `gone`."""
    (name,) = request.transactional_ids
    topics = [DescribedTransactionTopic(topic="orders", partitions=[0, 1])]
    one = DescribedTransaction(
        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if name == "gone" else ErrorCode.NONE,
        transactional_id=name,
        transaction_state="Empty" if name == "idle" else "Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=500,
        producer_id=7,
        producer_epoch=3,
        topics=[] if name == "idle" else topics,
    )
    return DescribeTransactionsResponse(transaction_states=[one])


OPEN = TransactionDescription(
    transactional_id="transfer",
    state="Ongoing",
    producer_id=ProducerId(7),
    producer_epoch=3,
    timeout_ms=60_000,
    started_ms=TimestampMs(500),
    partitions=(TopicPartition("orders", 0), TopicPartition("orders", 1)),
)


def test_a_transaction_is_described_by_its_coordinator() -> None:
    cluster = cluster_with({ApiKey.DESCRIBE_TRANSACTIONS: described})

    async def scenario(client: Client) -> None:
        assert await describe_transaction(client, "transfer") == OPEN
        idle = await describe_transaction(client, "idle")
        assert (idle.state, idle.started_ms, idle.partitions) == ("Empty", None, ())
        with pytest.raises(Refused, match="transactional id gone: ") as refused:
            await describe_transaction(client, "gone")
        assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    cluster.run(scenario)
    assert cluster.asked(ApiKey.DESCRIBE_TRANSACTIONS, broker=0) == []


def test_of_many_ids_the_unknown_ones_are_left_out() -> None:
    cluster = cluster_with({ApiKey.DESCRIBE_TRANSACTIONS: described})

    async def scenario(client: Client) -> None:
        found = await describe_transactions(client, ["transfer", "gone", "idle"])
        assert found.keys() == {"transfer", "idle"}
        assert found["transfer"] == OPEN

    cluster.run(scenario)


def test_of_many_ids_any_other_error_is_raised() -> None:
    one = DescribedTransaction(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    response = DescribeTransactionsResponse(transaction_states=[one])
    cluster = cluster_with({ApiKey.DESCRIBE_TRANSACTIONS: lambda request: response})

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="transactional id a: "):
            await describe_transactions(client, ["a"])

    cluster.run(scenario)


def test_a_connection_that_is_lost_meanwhile_costs_a_second_attempt() -> None:
    def hang_up_once(request: DescribeTransactionsRequest) -> DescribeTransactionsResponse | None:
        if len(cluster.asked(ApiKey.DESCRIBE_TRANSACTIONS, broker=1)) == 1:
            cluster.brokers[1].hang_up()
            return None
        return described(request)

    cluster = cluster_with({ApiKey.DESCRIBE_TRANSACTIONS: hang_up_once})

    async def scenario(client: Client) -> None:
        assert await describe_transactions(client, ["transfer"]) == {"transfer": OPEN}

    cluster.run(scenario)


# Ending


def test_a_producer_is_fenced_by_a_new_epoch_of_its_id() -> None:
    cluster = cluster_with(
        {
            ApiKey.DESCRIBE_TRANSACTIONS: described,
            ApiKey.INIT_PRODUCER_ID: lambda request: InitProducerIdResponse(),
        }
    )

    async def scenario(client: Client) -> None:
        await fence_producer(client, "transfer")

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.INIT_PRODUCER_ID, broker=1)
    assert isinstance(request, InitProducerIdRequest)
    assert (request.transactional_id, request.producer_id) == ("transfer", -1)
    assert request.transaction_timeout_ms > 0


def test_an_unknown_id_is_not_created_to_be_fenced() -> None:
    cluster = cluster_with({ApiKey.DESCRIBE_TRANSACTIONS: described})

    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="transactional id gone: "):
            await fence_producer(client, "gone")

    cluster.run(scenario)
    assert cluster.asked(ApiKey.INIT_PRODUCER_ID, broker=1) == []


def test_fencing_waits_for_a_transaction_that_is_just_ending() -> None:
    codes = [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]
    cluster = cluster_with(
        {
            ApiKey.DESCRIBE_TRANSACTIONS: described,
            ApiKey.INIT_PRODUCER_ID: lambda request: InitProducerIdResponse(error_code=codes.pop()),
        }
    )

    async def scenario(client: Client) -> None:
        await fence_producer(client, "transfer")

    cluster.run(scenario)
    assert codes == []


def producers(code: ErrorCode, *states: ProducerState) -> ScriptedCluster:
    partition = DescribeProducersResponsePartition(
        partition_index=1,
        error_code=code,
        error_message=None if code is ErrorCode.NONE else "ask another broker",
        active_producers=list(states),
    )
    topic = DescribeProducersResponseTopic(name="orders", partitions=[partition])
    response = DescribeProducersResponse(topics=[topic])
    return cluster_with({ApiKey.DESCRIBE_PRODUCERS: lambda request: response})


def hanging(producer_id: int, start_offset: int, coordinator_epoch: int = 4) -> OpenTransaction:
    return OpenTransaction(
        tp=TP,
        producer_id=ProducerId(producer_id),
        producer_epoch=2,
        coordinator_epoch=coordinator_epoch,
        start_offset=Offset(start_offset),
    )


def test_open_transactions_of_a_partition_come_oldest_first() -> None:
    states = [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=2,
            coordinator_epoch=4,
            current_txn_start_offset=start_offset,
        )
        for producer_id, start_offset in ((7, 40), (8, -1), (9, 0))
    ]
    cluster = producers(ErrorCode.NONE, *states)

    async def scenario(client: Client) -> None:
        assert await open_transactions(client, TP) == [hanging(9, 0), hanging(7, 40)]

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.DESCRIBE_PRODUCERS, broker=1)
    assert isinstance(request, DescribeProducersRequest)
    assert [(one.name, one.partition_indexes) for one in request.topics] == [("orders", [1])]


def test_a_partition_whose_producers_are_not_told_is_refused() -> None:
    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match="orders-1: ask another broker"):
            await open_transactions(client, TP)

    producers(ErrorCode.NOT_LEADER_OR_FOLLOWER).run(scenario)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize(("known_epoch", "sent_epoch"), [(4, 4), (-1, 0)])
def test_a_transaction_is_aborted_in_one_partition_by_a_marker(
    code: ErrorCode, known_epoch: int, sent_epoch: int
) -> None:
    """One that no coordinator has ended has no coordinator epoch yet."""
    partition = WritableTxnMarkerPartitionResult(partition_index=1, error_code=code)
    topic = WritableTxnMarkerTopicResult(name="orders", partitions=[partition])
    response = WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(topics=[topic])])
    cluster = cluster_with({ApiKey.WRITE_TXN_MARKERS: lambda request: response})

    async def scenario(client: Client) -> None:
        abort = abort_in_partition(client, hanging(7, 40, known_epoch))
        if code is ErrorCode.NONE:
            await abort
        else:
            with pytest.raises(Refused, match="orders-1: "):
                await abort

    cluster.run(scenario)
    (request,) = cluster.asked(ApiKey.WRITE_TXN_MARKERS, broker=1)
    assert isinstance(request, WriteTxnMarkersRequest)
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch) == (7, 2)
    assert (marker.transaction_result, marker.coordinator_epoch) == (False, sent_epoch)
    assert [(one.name, one.partition_indexes) for one in marker.topics] == [("orders", [1])]
