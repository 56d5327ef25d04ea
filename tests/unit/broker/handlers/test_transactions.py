"""Transactions over their requests: added, ended, and refused in the words of each version."""

from pathlib import Path

import pytest

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
)


async def init(handled: Handled) -> InitProducerIdResponse:
    """A producer of transactional id t, with topic t to write to."""
    await handled.find_coordinators()
    await handled.create_topic("t")
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    response: InitProducerIdResponse = await handled.call(ApiKey.INIT_PRODUCER_ID, request, 5)
    assert response.error_code == 0
    return response


def adding(
    producer: InitProducerIdResponse, *names: str, epoch: int | None = None
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch if epoch is None else epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names],
    )


async def add(handled: Handled, request: AddPartitionsToTxnRequest, version: int = 3) -> list[int]:
    response = await handled.call(ApiKey.ADD_PARTITIONS_TO_TXN, request, version)
    return [
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]


def test_partitions_are_added_all_or_none(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        refused = await add(handled, adding(producer, "t", "gone"))
        not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert refused == [not_attempted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await add(handled, adding(producer, "t")) == [0]

    handle(tmp_path, scenario)


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_a_fenced_producer_gets_the_error_its_version_knows(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        request = adding(producer, "t", epoch=producer.producer_epoch + 1)
        assert await add(handled, request, version) == [code]
        ending = EndTxnRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch + 1,
            committed=True,
        )
        assert (await handled.call(ApiKey.END_TXN, ending, version)).error_code == code

    handle(tmp_path, scenario)


@pytest.mark.parametrize(("version", "epoch"), [(4, 0), (5, 1)])
def test_from_version_5_on_an_end_raises_the_epoch(
    tmp_path: Path, version: int, epoch: int
) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        assert await add(handled, adding(producer, "t")) == [0]
        request = EndTxnRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        response = await handled.call(ApiKey.END_TXN, request, version)
        assert response.error_code == 0
        if version >= 5:
            assert response.producer_id == producer.producer_id
        (machine,) = handled.services.transactions.machines()
        assert machine.by_id["t"].producer.epoch == epoch

    handle(tmp_path, scenario)


def test_an_id_that_a_broker_names_twice_is_refused_both_times(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=True,
            topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        for transactions, code in (
            ([transaction] * 2, ErrorCode.INVALID_REQUEST),
            ([transaction], ErrorCode.TRANSACTION_ABORTABLE),
        ):
            request = AddPartitionsToTxnRequest(transactions=transactions)
            response = await handled.call(ApiKey.ADD_PARTITIONS_TO_TXN, request, 5)
            codes = {
                result.topic_results[0].results_by_partition[0].partition_error_code
                for result in response.results_by_transaction
            }
            assert codes == {code}

    handle(tmp_path, scenario)


def test_the_partition_of_a_groups_offsets_is_added(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        producer = await init(handled)
        request = AddOffsetsToTxnRequest(
            transactional_id="t",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="g",
        )
        response = await handled.call(ApiKey.ADD_OFFSETS_TO_TXN, request, 4)
        assert response.error_code == 0
        (machine,) = handled.services.transactions.machines()
        assert machine.by_id["t"].partitions == {handled.services.groups.partition_of("g")}

    handle(tmp_path, scenario)
