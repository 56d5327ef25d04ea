"""A Metadata response as a view: leaders, and topics that have none."""

from ottla.client.cluster_view import view_of
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def partition(index: int, leader: int) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, replica_nodes=[1, 2], isr_nodes=[1]
    )


RESPONSE = MetadataResponse(
    brokers=[MetadataResponseBroker(node_id=1, host="one", port=9092)],
    topics=[
        MetadataResponseTopic(name="orders", partitions=[partition(1, -1), partition(0, 1)]),
        MetadataResponseTopic(name="gone", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)


def test_partitions_are_in_order_whatever_the_order_of_the_response() -> None:
    view = view_of(RESPONSE)
    assert [item.index for item in view.topics["orders"].partitions] == [0, 1]
    assert view.brokers == {BrokerId(1): Endpoint("one", 9092)}
    assert view.topics["gone"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_a_known_partition_with_a_leader_has_one() -> None:
    view = view_of(RESPONSE)
    assert view.leader_of(TopicPartition("orders", 0)) == 1
    for tp in (("orders", 1), ("orders", 2), ("orders", -1), ("gone", 0), ("unknown", 0)):
        assert view.leader_of(TopicPartition(*tp)) is None
