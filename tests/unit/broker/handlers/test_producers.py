"""InitProducerId: ids that are never given twice, epochs that only rise."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    InitProducerIdRequest,
)

INIT = ApiKey.INIT_PRODUCER_ID


def test_every_idempotent_producer_gets_an_id_of_its_own(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        request = InitProducerIdRequest(transactional_id=None)
        responses = [await handled.call(INIT, request, 5) for _ in range(3)]
        assert {response.producer_epoch for response in responses} == {0}
        assert len({response.producer_id for response in responses}) == 3

    handle(tmp_path, scenario)


def test_a_producer_that_recovers_keeps_its_id_until_its_epochs_end(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        request = InitProducerIdRequest(transactional_id=None, producer_id=7, producer_epoch=3)
        recovered = await handled.call(INIT, request, 5)
        assert (recovered.producer_id, recovered.producer_epoch) == (7, 4)
        last = InitProducerIdRequest(transactional_id=None, producer_id=7, producer_epoch=32766)
        replaced = await handled.call(INIT, last, 5)
        assert replaced.producer_id != 7
        assert replaced.producer_epoch == 0

    handle(tmp_path, scenario)


def test_a_transactional_producer_fences_the_one_before(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        first = await handled.call(INIT, request, 5)
        second = await handled.call(INIT, request, 5)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
        third = await handled.call(INIT, request, 5)
        assert third.producer_epoch == 2
        zombie = InitProducerIdRequest(
            transactional_id="t",
            transaction_timeout_ms=1000,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
        )
        refused = await handled.call(INIT, zombie, 4)
        assert refused.error_code == ErrorCode.PRODUCER_FENCED
        refused = await handled.call(INIT, zombie, 3)
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    handle(tmp_path, scenario)


def test_producers_of_an_unknown_partition_are_an_error(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.create_topic("t")
        topics = [
            DescribeProducersRequestTopic(name="t", partition_indexes=[0]),
            DescribeProducersRequestTopic(name="gone", partition_indexes=[0]),
        ]
        request = DescribeProducersRequest(topics=topics)
        response = await handled.call(ApiKey.DESCRIBE_PRODUCERS, request, 0)
        codes = [topic.partitions[0].error_code for topic in response.topics]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    handle(tmp_path, scenario)
