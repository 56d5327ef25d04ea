"""Requests that name the same thing again and again: answered once or refused, as in Kafka."""

import pytest

from hostile.attacked_broker import AttackedBroker
from hostile.wire import create_topic, raw_client
from ottla.errors import ErrorCode
from ottla.protocol.messages.classic_groups import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
)
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

NAME = "repeated"
TOPIC_RESOURCE = 2


@pytest.fixture(scope="module", autouse=True)
def _topic(broker: AttackedBroker) -> None:
    create_topic(broker, NAME)


@pytest.mark.parametrize("count", [3, 2000])
def test_metadata_answers_a_topic_once(broker: AttackedBroker, count: int) -> None:
    with raw_client(broker) as client:
        named = MetadataRequest(topics=[MetadataRequestTopic(name=NAME)] * count)
        (topic,) = client.ask(named, 12).topics
        assert (topic.name, len(topic.partitions)) == (NAME, 1)
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic.topic_id)] * count)
        assert [one.name for one in client.ask(by_id, 12).topics] == [NAME]


@pytest.mark.parametrize("count", [2, 2000])
def test_list_offsets_refuses_a_partition_that_is_named_twice_and_answers_the_others(
    broker: AttackedBroker, count: int
) -> None:
    twice = ListOffsetsTopic(
        name=NAME, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)] * count
    )
    other = ListOffsetsTopic(name=NAME, partitions=[ListOffsetsPartition(partition_index=7)])
    with raw_client(broker) as client:
        answered, unknown = client.ask(ListOffsetsRequest(topics=[twice, other]), 7).topics
    codes = [partition.error_code for partition in answered.partitions]
    assert codes == [ErrorCode.INVALID_REQUEST] * count
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_configs_answers_the_same_question_once(broker: AttackedBroker) -> None:
    def resource(*keys: str) -> DescribeConfigsResource:
        return DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=NAME,
            configuration_keys=list(keys) or None,
        )

    asked = [resource(), resource("retention.ms"), resource(), resource("retention.ms")]
    with raw_client(broker) as client:
        everything, one = client.ask(DescribeConfigsRequest(resources=asked), 4).results
    assert len(everything.configs) > 10
    assert [config.name for config in one.configs] == ["retention.ms"]


def test_settings_of_a_resource_that_is_named_twice_are_refused(broker: AttackedBroker) -> None:
    replaced = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=NAME,
        configs=[AlterableConfig(name="retention.ms", value="1000")],
    )
    changed = IncrementalAlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=NAME,
        configs=[IncrementalAlterableConfig(name="retention.ms", value="1000")],
    )
    with raw_client(broker) as client:
        for request in (
            AlterConfigsRequest(resources=[replaced] * 2),
            IncrementalAlterConfigsRequest(resources=[changed] * 2),
        ):
            answers = client.ask(request, 1).responses
            assert [a.error_code for a in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_topics_that_are_named_twice_are_neither_deleted_nor_grown(broker: AttackedBroker) -> None:
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=NAME, count=2, assignments=None)] * 2,
        timeout_ms=10_000,
    )
    delete = DeleteTopicsRequest(topic_names=[NAME, NAME], timeout_ms=10_000)
    with raw_client(broker) as client:
        grown = client.ask(grow, 2).results
        assert [one.error_code for one in grown] == [ErrorCode.INVALID_REQUEST] * 2
        deleted = client.ask(delete, 4).responses
        assert [one.error_code for one in deleted] == [ErrorCode.INVALID_REQUEST] * 2
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=NAME)])
        assert len(client.ask(asked, 12).topics[0].partitions) == 1


def test_a_transactional_id_that_is_named_twice_by_a_broker_is_refused(
    broker: AttackedBroker,
) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="twice",
        topics=[AddPartitionsToTxnTopic(name=NAME, partitions=[0, 0])],
    )
    with raw_client(broker) as client:
        answer = client.ask(AddPartitionsToTxnRequest(transactions=[transaction] * 2), 5)
    for result in answer.results_by_transaction:
        codes = [p.partition_error_code for p in result.topic_results[0].results_by_partition]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2


def test_a_member_with_too_many_protocols_is_refused(broker: AttackedBroker) -> None:
    protocols = [JoinGroupRequestProtocol(name=f"p{n}", metadata=b"") for n in range(101)]
    request = JoinGroupRequest(
        group_id="protocols",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    with raw_client(broker) as client:
        client.ask(FindCoordinatorRequest(coordinator_keys=["protocols"]), 4)
        assert client.ask(request, 5).error_code == ErrorCode.INVALID_REQUEST
        request.protocols.pop()
        assert client.ask(request, 5).error_code == ErrorCode.MEMBER_ID_REQUIRED
