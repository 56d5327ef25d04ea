"""Markers and verification over real sockets, between a coordinator and partitions elsewhere."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from fakes.answering_broker import AnsweringBroker
from fakes.cluster_images import alive, broker, with_topic
from ottla.cluster.image import ClusterImage
from ottla.cluster.store import Revision
from ottla.coordinator.runtime.log_entries import ProducerIdentity
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.coordinator.transactions.markers import TransactionEnd
from ottla.coordinator.transactions.peer_markers import PeerMarkers
from ottla.coordinator.transactions.peer_verification import PeerVerification
from ottla.coordinator.transactions.routing import TransactionRouter
from ottla.errors import (
    CoordinatorFenced,
    ErrorCode,
    InvalidProducerEpoch,
    NotCoordinator,
    NotLeader,
    RequestTimedOut,
)
from ottla.model import BrokerId, ProducerEpoch, ProducerId, TopicPartition, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.peers import Peers

HERE, THERE = BrokerId(1), BrokerId(2)
TOKEN = Uuid(bytes(range(16)))
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(1))
COMMIT = TransactionEnd(PRODUCER, is_commit=True, coordinator_epoch=4, version=2)
ABORT = TransactionEnd(
    ProducerIdentity(ProducerId(8), ProducerEpoch(0)), is_commit=False, coordinator_epoch=4
)
ORDERS = [TopicPartition("orders", index) for index in range(3)]


def fail(problem: BaseException) -> None:
    raise AssertionError("a defect") from problem


def image_with(there: AnsweringBroker) -> ClusterImage:
    """Two brokers, and `orders`, whose partitions the other one leads."""
    ours = replace(broker(HERE), token=TOKEN)
    other = broker(THERE, there.endpoint.port, host=there.endpoint.host)
    image = ClusterImage().apply([*alive(ours, 1), *alive(other, 1)], Revision(1))
    return with_topic(image, (2, 1), (2, 1), (2, 1))


def run(
    scripts: dict[ApiKey, Callable[[Any], Any]],
    scenario: Callable[[AnsweringBroker, Peers, ClusterImage], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), AnsweringBroker(scripts) as there:
            image = image_with(there)
            peers = Peers(HERE, lambda: image, fail)
            try:
                await scenario(there, peers, image)
            finally:
                peers.close()

    asyncio.run(main())


def written(codes: dict[int, int]) -> Callable[[WriteTxnMarkersRequest], WriteTxnMarkersResponse]:
    """The response of a leader, with these errors by partition."""

    def respond(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=codes.get(index, 0)
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    return respond


def test_markers_for_one_broker_are_one_request_with_proof_number_and_epochs() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        markers = PeerMarkers(peers, lambda: image)
        await asyncio.gather(
            *(markers.write(tp, COMMIT) for tp in ORDERS), markers.write(ORDERS[0], ABORT)
        )
        await markers.write(ORDERS[1], ABORT)
        (_, _, first), (_, _, second) = there.asked
        assert first.broker_token == second.broker_token == TOKEN
        assert 0 < first.sequence < second.sequence
        commit, abort = first.markers
        assert (commit.producer_id, commit.transaction_result, commit.coordinator_epoch) == (
            *(7, True),
            4,
        )
        assert commit.transaction_version == 2
        assert commit.topics[0].partition_indexes == [0, 1, 2]
        epochs = [part.leader_epoch for part in image.topics["orders"].partitions]
        assert commit.topics[0].leader_epochs == epochs
        assert (abort.producer_id, abort.transaction_result) == (8, False)

    run({ApiKey.WRITE_TXN_MARKERS: written({})}, scenario)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NotLeader),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NotLeader),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NotLeader),  # it may not have seen it yet
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NotLeader),  # nor us
        (ErrorCode.INVALID_PRODUCER_EPOCH, InvalidProducerEpoch),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, CoordinatorFenced),
    ],
)
def test_only_an_end_that_is_outdated_is_not_sent_again(
    code: ErrorCode, error: type[Exception]
) -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        markers = PeerMarkers(peers, lambda: image)
        done, refused = await asyncio.gather(
            markers.write(ORDERS[0], COMMIT),
            markers.write(ORDERS[1], COMMIT),
            return_exceptions=True,
        )
        assert done is None
        assert type(refused) is error

    run({ApiKey.WRITE_TXN_MARKERS: written({1: code})}, scenario)


def test_a_marker_without_a_leader_or_a_result_is_sent_again() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        markers = PeerMarkers(peers, lambda: image)
        with pytest.raises(NotLeader, match="nothing"):
            await markers.write(ORDERS[0], COMMIT)
        with pytest.raises(NotLeader, match="no leader"):
            await markers.write(TopicPartition("gone", 0), COMMIT)

    run({ApiKey.WRITE_TXN_MARKERS: lambda _: WriteTxnMarkersResponse()}, scenario)


def added(
    codes: dict[int, int],
) -> Callable[[AddPartitionsToTxnRequest], AddPartitionsToTxnResponse]:
    def respond(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=codes.get(index, 0)
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in request.transactions
            ]
        )

    return respond


class Elsewhere:
    """A transaction coordinator that coordinates nothing: other brokers do."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.led: set[TopicPartition] = set()
        self.asked: list[str] = []

    def partition_of(self, transactional_id: str) -> TopicPartition:
        return self.tp

    def leads(self, tp: TopicPartition) -> bool:
        return tp in self.led

    async def add(self, transactional_id: str, *more: object) -> ErrorCode:
        self.asked.append(transactional_id)
        return ErrorCode.NONE

    async def verify(self, transactional_id: str, *more: object) -> list[ErrorCode]:
        self.asked.append(transactional_id)
        return [ErrorCode.NONE]


def router(here: Elsewhere, peers: Peers, image: ClusterImage) -> TransactionRouter:
    verification = PeerVerification(peers)
    coordinator = cast("TransactionCoordinator", here)
    return TransactionRouter(HERE, coordinator, lambda: image, lambda: verification)


def test_partitions_are_added_and_verified_by_the_coordinator_wherever_it_is() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        routed = router(Elsewhere(ORDERS[0]), peers, image)
        assert await routed.add("t", PRODUCER, ORDERS[:2], 2) is ErrorCode.NONE
        refused = ErrorCode.TRANSACTION_ABORTABLE
        assert await routed.verify("t", PRODUCER, ORDERS) == [0, 0, refused]
        (_, version, add), (_, _, verify) = there.asked
        assert version == 5
        (transaction,) = add.transactions
        assert (transaction.producer_id, transaction.producer_epoch) == PRODUCER
        assert not transaction.verify_only
        assert transaction.topics[0].partitions == [0, 1]
        assert verify.transactions[0].verify_only

    run({ApiKey.ADD_PARTITIONS_TO_TXN: added({2: ErrorCode.TRANSACTION_ABORTABLE})}, scenario)


def test_a_transaction_that_is_still_ending_is_asked_about_again() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        answers = [added({0: ErrorCode.CONCURRENT_TRANSACTIONS})] * 3 + [added({})]

        def respond(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
            return answers.pop(0)(request)

        there.scripts[ApiKey.ADD_PARTITIONS_TO_TXN] = respond
        routed = router(Elsewhere(ORDERS[0]), peers, image)
        assert await routed.add("t", PRODUCER, ORDERS[:1], 2) is ErrorCode.NONE
        assert not answers
        there.scripts[ApiKey.ADD_PARTITIONS_TO_TXN] = added({0: ErrorCode.CONCURRENT_TRANSACTIONS})
        error = await routed.add("t", PRODUCER, ORDERS[:1], 2)
        assert error is ErrorCode.CONCURRENT_TRANSACTIONS, "not for ever"

    run({}, scenario)


def test_transactions_of_one_coordinator_share_a_request_and_an_id_is_named_once() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        routed = router(Elsewhere(ORDERS[0]), peers, image)
        names = ["a", "b", "a", "c"]
        await asyncio.gather(*(routed.verify(name, PRODUCER, ORDERS[:1]) for name in names))
        asked = [
            [one.transactional_id for one in request.transactions] for *_, request in there.asked
        ]
        assert asked == [["a", "b", "c"], ["a"]]

    run({ApiKey.ADD_PARTITIONS_TO_TXN: added({})}, scenario)


def test_the_coordinator_of_this_broker_is_asked_directly() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        here = Elsewhere(ORDERS[0])
        here.led = {ORDERS[0]}
        routed = router(here, peers, image)
        assert await routed.add("t", PRODUCER, ORDERS, 2) is ErrorCode.NONE
        assert await routed.verify("u", PRODUCER, ORDERS) == [ErrorCode.NONE]
        assert here.asked == ["t", "u"]
        assert there.asked == []

    run({}, scenario)


def test_a_coordinator_that_nobody_is_or_that_is_silent_may_be_asked_later() -> None:
    async def scenario(there: AnsweringBroker, peers: Peers, image: ClusterImage) -> None:
        for nowhere in (TopicPartition("gone", 0),):
            with pytest.raises(NotCoordinator):
                await router(Elsewhere(nowhere), peers, image).add("t", PRODUCER, ORDERS, 2)
        routed = router(Elsewhere(ORDERS[0]), peers, image)
        with pytest.raises(NotCoordinator, match="did not respond about"):
            await routed.verify("t", PRODUCER, ORDERS)
        there.scripts[ApiKey.ADD_PARTITIONS_TO_TXN] = lambda _: there.hang_up()
        with pytest.raises(RequestTimedOut, match="did not respond"):
            await routed.add("t", PRODUCER, ORDERS, 2)

    run({ApiKey.ADD_PARTITIONS_TO_TXN: lambda _: AddPartitionsToTxnResponse()}, scenario)
