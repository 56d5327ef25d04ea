"""Plain answers of a single broker to what admin tools ask of any: no rules, quotas or moves.

The codes are those of a broker of Apache Kafka 4.3.1 that is asked the same.
"""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka import errors as kafka_errors
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as KafkaPythonResource
from kafka.structs import TopicPartitionReplica

from compat.adapter import PATIENCE_S, MakeTopic
from compat.kafka_python_client import KafkaPythonClient
from compat.raw import RawConnection
from compat.served import ServedBroker
from compat.test_group_requests import find
from compat.wire import produce
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.messages.classic_groups import DescribeGroupsRequest
from ottla.protocol.messages.cluster import DescribeClusterRequest
from ottla.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from ottla.protocol.messages.sasl import SaslHandshakeRequest
from ottla.records.batch import Record, build_batch
from ottla.records.compression import Codec

NOT_REQUESTED = -(2**31)
CLUSTER_BITS, TOPIC_BITS, GROUP_BITS = 8096, 3576, 3400  # as Apache's broker gives them
ANOTHER_RECORD_WAS_BAD = -138  # librdkafka's own code


@pytest.fixture
def confluent_admin(broker: ServedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def code_of(ask: Callable[[], Any]) -> int:
    """The code of the error that confluent-kafka raises."""
    with pytest.raises(KafkaException) as refused:
        ask()
    code: int = refused.value.args[0].code()
    return code


def test_confluent_hears_that_there_are_no_rules(confluent_admin: AdminClient) -> None:
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    same = AclBindingFilter(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin, disabled = confluent_admin, ErrorCode.SECURITY_DISABLED
    assert code_of(lambda: admin.create_acls([rule])[rule].result(PATIENCE_S)) == disabled
    assert code_of(lambda: admin.delete_acls([same])[same].result(PATIENCE_S)) == disabled


def test_confluent_needs_no_election(confluent_admin: AdminClient, make_topic: MakeTopic) -> None:
    name = make_topic(partitions=2)
    asked = [TopicPartition(name, 0), TopicPartition(name, 7)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        results = confluent_admin.elect_leaders(kind, asked).result(PATIENCE_S)
        assert {found.partition: error.code() for found, error in results.items()} == {
            0: ErrorCode.ELECTION_NOT_NEEDED,
            7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
    assert confluent_admin.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_S) == {}


@pytest.fixture
def kafka_python_admin(kafka_python: KafkaPythonClient) -> Any:
    admin = KafkaAdminClient(bootstrap_servers=kafka_python.address)
    yield admin
    admin.close()


def test_kafka_python_moves_nothing(kafka_python_admin: Any, make_topic: MakeTopic) -> None:
    tp = KafkaPythonPartition(make_topic(), 0)
    assert kafka_python_admin.list_partition_reassignments() == {}
    for replicas, error in (
        ([0], None),
        (None, kafka_errors.NoReassignmentInProgressError),
        ([5], kafka_errors.InvalidReplicationAssignmentError),
    ):
        assert kafka_python_admin.alter_partition_reassignments({tp: replicas}) == {tp: error}
    (logs,) = kafka_python_admin.describe_log_dirs()[0]["log_dirs"]
    for directory, partition, error in (
        (logs["log_dir"], 0, kafka_errors.NoError),
        (logs["log_dir"], 7, kafka_errors.ReplicaNotAvailableError),
        ("/nowhere", 0, kafka_errors.LogDirNotFoundError),
    ):
        replica = TopicPartitionReplica(tp.topic, partition, 0)
        moved = kafka_python_admin.alter_replica_log_dirs({replica: directory})
        assert moved == {replica: error}


def test_kafka_python_finds_no_rules_and_no_users_but_features(kafka_python_admin: Any) -> None:
    pattern = ResourcePatternFilter(KafkaPythonResource.ANY, None, ACLResourcePatternType.ANY)
    every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
    with pytest.raises(kafka_errors.SecurityDisabledError, match="no authorizer"):
        kafka_python_admin.describe_acls(every)
    assert kafka_python_admin.describe_user_scram_credentials() == {}
    features = kafka_python_admin.describe_features()
    assert "group.version" in str(features)


def test_operations_are_all_of_them_where_a_request_asks(
    raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic()
    find(raw, "nobody")
    for asked in (True, False):
        expected = TOPIC_BITS if asked else NOT_REQUESTED
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)],
            include_topic_authorized_operations=asked,
            include_cluster_authorized_operations=asked,
        )
        for version in (8, 10, 13):
            response = raw.ask(request, version)
            assert response.topics[0].topic_authorized_operations == expected
            in_cluster = asked and version <= 10  # later versions leave that to DescribeCluster
            found = response.cluster_authorized_operations
            assert found == (CLUSTER_BITS if in_cluster else NOT_REQUESTED)
        cluster = raw.ask(DescribeClusterRequest(include_cluster_authorized_operations=asked), 1)
        expected = CLUSTER_BITS if asked else NOT_REQUESTED
        assert cluster.cluster_authorized_operations == expected
        groups = DescribeGroupsRequest(groups=["nobody"], include_authorized_operations=asked)
        (found,) = raw.ask(groups, 5).groups
        assert found.authorized_operations == (GROUP_BITS if asked else NOT_REQUESTED)
        (missing,) = raw.ask(groups, 6).groups
        assert missing.authorized_operations == NOT_REQUESTED
    pages = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopic(name=name)])
    (topic,) = raw.ask(pages, 0).topics
    assert topic.topic_authorized_operations == TOPIC_BITS


def test_confluent_shows_the_operations(confluent_admin: AdminClient) -> None:
    cluster = confluent_admin.describe_cluster(include_authorized_operations=True)
    names = {operation.name for operation in cluster.result(PATIENCE_S).authorized_operations}
    assert names >= {"CREATE", "ALTER", "DESCRIBE", "IDEMPOTENT_WRITE"}


# Bad records are named (KIP-467)


def test_only_the_bad_records_of_a_batch_are_blamed(
    broker: ServedBroker, make_topic: MakeTopic
) -> None:
    """By librdkafka, which tells each record of a batch apart by the broker's list."""
    name = make_topic(cleanup_policy="compact")
    outcomes: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 60_000})

    def note(error: Any, message: Any) -> None:
        outcomes[message.value()] = 0 if error is None else error.code()

    for value, key in ((b"a", b"k"), (b"b", None), (b"c", b"k"), (b"d", None)):
        producer.produce(name, value, key, on_delivery=note)
    assert producer.flush(PATIENCE_S) == 0
    assert outcomes == {
        b"a": ANOTHER_RECORD_WAS_BAD,
        b"b": ErrorCode.INVALID_RECORD,
        b"c": ANOTHER_RECORD_WAS_BAD,
        b"d": ErrorCode.INVALID_RECORD,
    }


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_records_without_a_key_are_listed_by_index(
    raw: RawConnection, make_topic: MakeTopic, version: int, codec: Codec
) -> None:
    name = make_topic(cleanup_policy="compact")
    records = [Record(key=key, value=b"x") for key in (b"a", None, b"c", None)]
    found = produce(raw, name, bytes(build_batch(records, codec=codec)), version=version)
    assert (found.error_code, found.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    indexes = [one.batch_index for one in found.record_errors]
    if version < 8:  # which has no room for them
        assert (indexes, found.error_message) == ([], None)
        return
    assert indexes == [1, 3]
    assert all("needs a key" in str(one.batch_index_error_message) for one in found.record_errors)
    assert "2 of 4" in (found.error_message or "")


def test_the_list_of_bad_records_has_an_end(raw: RawConnection, make_topic: MakeTopic) -> None:
    name = make_topic(cleanup_policy="compact")
    records = [Record(value=b"x")] * 5000
    found = produce(raw, name, bytes(build_batch(records, codec=Codec.GZIP)))
    assert [one.batch_index for one in found.record_errors] == list(range(1000))
    assert "5000 of 5000" in (found.error_message or "")


def test_records_with_a_bad_timestamp_are_listed(raw: RawConnection, make_topic: MakeTopic) -> None:
    name = make_topic(message_timestamp_before_max_ms=10**12, message_timestamp_after_max_ms=0)
    good_ms = 1_700_000_000_000
    times = (good_ms, 1, -1, good_ms + 10**12)
    records = [Record(value=b"x", timestamp_ms=TimestampMs(time_ms)) for time_ms in times]
    found = produce(raw, name, bytes(build_batch(records)))
    assert found.error_code == ErrorCode.INVALID_TIMESTAMP
    texts = {one.batch_index: str(one.batch_index_error_message) for one in found.record_errors}
    assert texts.keys() == {1, 3}
    assert "in the past" in texts[1]
    assert "in the future" in texts[3]


# Requests that are not served


def test_a_client_that_wants_to_log_in_is_answered_and_stays_connected(
    raw: RawConnection,
) -> None:
    response = raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert raw.ask(DescribeClusterRequest(), 1).error_code == ErrorCode.NONE
