"""Transactions as administrators see them, and the markers that they write."""

import re
from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.broker.handlers.transaction_admin import _matcher
from ottla.errors import ErrorCode
from ottla.model import NO_UUID, Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.producers import InitProducerIdRequest
from ottla.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(?=a)", r"(a)\1", "a*b*c*", "(ab)?", "a{3}b*c+", "x" * 1001]
)
def test_an_expression_that_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(re.error):
        _matcher(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [("a.*", "abc", True), ("a", "abc", False), ("a*b*", "aab", True), ("a.*", "a" * 1001, False)],
)
def test_an_expression_matches_a_whole_id(pattern: str, text: str, matches: bool) -> None:
    assert _matcher(pattern)(text) is matches


def test_transactions_are_listed_by_state_and_pattern(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        for name in ("orders-1", "users-1"):
            init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
            await handled.call(ApiKey.INIT_PRODUCER_ID, init, 5)
        request = ListTransactionsRequest(
            state_filters=["Empty", "Lost"], transactional_id_pattern="orders-.*"
        )
        response = await handled.call(ApiKey.LIST_TRANSACTIONS, request, 2)
        assert response.unknown_state_filters == ["Lost"]
        (listed,) = response.transaction_states
        assert (listed.transactional_id, listed.transaction_state) == ("orders-1", "Empty")
        wrong = ListTransactionsRequest(transactional_id_pattern="(a+)+")
        refused = await handled.call(ApiKey.LIST_TRANSACTIONS, wrong, 2)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    handle(tmp_path, scenario)


def test_every_requested_transaction_has_a_result(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        await handled.call(ApiKey.INIT_PRODUCER_ID, init, 5)
        request = DescribeTransactionsRequest(transactional_ids=["t", "gone", ""])
        response = await handled.call(ApiKey.DESCRIBE_TRANSACTIONS, request, 0)
        codes = [described.error_code for described in response.transaction_states]
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert codes == [0, unknown, ErrorCode.INVALID_REQUEST]
        assert response.transaction_states[0].transaction_state == "Empty"

    handle(tmp_path, scenario)


def test_a_marker_of_an_administrator_ends_in_the_log(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        topics = [
            WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in ("t", "gone")
        ]
        marker = WritableTxnMarker(
            producer_id=7,
            producer_epoch=1,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=0,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await handled.call(ApiKey.WRITE_TXN_MARKERS, request, 1)
        codes = [topic.partitions[0].error_code for topic in response.markers[0].topics]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert handled.services.replicas.leaders["t", 0].log.end_offset == 1

    handle(tmp_path, scenario)


def marker_request(
    *, is_commit: bool, token: Uuid = NO_UUID, sequence: int = 0, leader_epoch: int | None = None
) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    if leader_epoch is not None:
        topic.leader_epochs.append(leader_epoch)
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=1,
        transaction_result=is_commit,
        topics=[topic],
        coordinator_epoch=0,
    )
    return WriteTxnMarkersRequest(markers=[marker], broker_token=token, sequence=sequence)


async def mark(handled: Handled, request: WriteTxnMarkersRequest) -> int:
    response = await handled.call(ApiKey.WRITE_TXN_MARKERS, request, 2)
    code: int = response.markers[0].topics[0].partitions[0].error_code
    return code


def token_of(handled: Handled) -> Uuid:
    (registered,) = handled.services.state.image.registered.values()
    assert registered.token
    return Uuid(registered.token)


def test_only_a_broker_that_proves_who_it_is_commits(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        log = handled.services.replicas.leaders["t", 0].log
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        wrong = Uuid(bytes(15) + b"x")
        assert await mark(handled, marker_request(is_commit=True)) == refused
        for is_commit in (True, False):
            request = marker_request(is_commit=is_commit, token=wrong, sequence=1)
            assert await mark(handled, request) == refused
        assert log.end_offset == 0
        proven = marker_request(is_commit=True, token=token_of(handled), sequence=1)
        assert await mark(handled, proven) == ErrorCode.NONE
        assert log.end_offset == 1

    handle(tmp_path, scenario)


def test_a_marker_that_comes_behind_a_later_request_or_for_another_epoch_is_void(
    tmp_path: Path,
) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        partition = handled.services.replicas.leaders["t", 0]
        token, epoch = token_of(handled), partition.leader_epoch

        async def send(sequence: int, leader_epoch: int) -> int:
            request = marker_request(
                is_commit=True, token=token, sequence=sequence, leader_epoch=leader_epoch
            )
            return await mark(handled, request)

        assert await send(2, epoch) == ErrorCode.NONE
        assert await send(1, epoch) == ErrorCode.INVALID_REQUEST
        assert await send(3, epoch + 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await send(4, epoch - 1 if epoch else -2) == ErrorCode.FENCED_LEADER_EPOCH
        assert partition.log.end_offset == 1

    handle(tmp_path, scenario)
