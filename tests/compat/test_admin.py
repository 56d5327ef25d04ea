"""What each client's admin side asks for, and how it hears a no."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat.adapter import PATIENCE_S, Admin, Client, MakeTopic, Refused, Sent
from compat.kafka_python_client import KafkaPythonClient, partition_of
from compat.kcat_client import MISSING, is_installed, run_kcat
from compat.raw import RawConnection
from compat.served import ServedBroker
from compat.wire import batch, produce
from ottla.errors import ErrorCode
from ottla.model import TimestampMs
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.records.batch import Record, build_batch


def test_a_topic_is_made_found_and_deleted(admin: Admin, new_name: Callable[[], str]) -> None:
    name = new_name()
    admin.create_topic(name, partitions=3, config={"retention.ms": "12345"})
    assert name in admin.topics()
    assert admin.partition_count(name) == 3
    assert admin.config(name)["retention.ms"] == "12345"
    admin.delete_topic(name)
    assert name not in admin.topics()


def refusal(ask: Callable[[], object]) -> ErrorCode | int:
    with pytest.raises(Refused) as refused:
        ask()
    return refused.value.code


def test_topics_that_cannot_be_made_are_refused_for_the_right_reason(
    admin: Admin, make_topic: MakeTopic, new_name: Callable[[], str]
) -> None:
    taken = make_topic()
    assert refusal(lambda: admin.create_topic(taken)) is ErrorCode.TOPIC_ALREADY_EXISTS
    bad = "not a name!"
    assert refusal(lambda: admin.create_topic(bad)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal(lambda: admin.create_topic("x" * 250)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    name = new_name()
    assert refusal(lambda: admin.create_topic(name, partitions=0)) is ErrorCode.INVALID_PARTITIONS
    for config in ({"retention.ms": "soon"}, {"no.such.setting": "1"}, {"segment.bytes": "1"}):
        asked = refusal(partial(admin.create_topic, name, config=config))
        assert asked is ErrorCode.INVALID_CONFIG
    assert name not in admin.topics()


def test_a_topic_can_be_tried_out(
    admin: Admin, make_topic: MakeTopic, new_name: Callable[[], str]
) -> None:
    name, taken = new_name(), make_topic()
    admin.validate_topic(name, 3)
    assert name not in admin.topics()
    assert refusal(lambda: admin.validate_topic(taken, 3)) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_topic_that_is_not_there_is_not_deleted_or_grown(
    admin: Admin, new_name: Callable[[], str]
) -> None:
    name = new_name()
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(lambda: admin.delete_topic(name)) is missing
    assert refusal(lambda: admin.add_partitions(name, 3)) is missing
    assert refusal(lambda: admin.config(name)) is missing
    assert refusal(lambda: admin.change_config(name, {"retention.ms": "1"})) is missing


def test_partitions_are_added_and_never_taken_away(admin: Admin, make_topic: MakeTopic) -> None:
    name = make_topic(partitions=2)
    admin.add_partitions(name, 4)
    assert admin.partition_count(name) == 4
    assert refusal(lambda: admin.add_partitions(name, 3)) is ErrorCode.INVALID_PARTITIONS
    assert refusal(lambda: admin.add_partitions(name, 4)) is ErrorCode.INVALID_PARTITIONS


def test_settings_are_changed_and_bad_ones_refused(admin: Admin, make_topic: MakeTopic) -> None:
    name = make_topic()
    admin.change_config(name, {"retention.ms": "99999", "max.message.bytes": "5000"})
    assert admin.config(name)["retention.ms"] == "99999"
    for changes in ({"retention.ms": "soon"}, {"no.such.setting": "1"}, {"durability": "maybe"}):
        asked = refusal(partial(admin.change_config, name, changes))
        assert asked is ErrorCode.INVALID_CONFIG
    assert admin.config(name)["retention.ms"] == "99999"


# Settings of Kafka that change nothing here. Tools copy them from other clusters.
WITHOUT_EFFECT = {
    "compression.lz4.level": "12",
    "file.delete.delay.ms": "1000",
    "flush.messages": "1",
    "flush.ms": "0",
    "follower.replication.throttled.replicas": "*",
    "leader.replication.throttled.replicas": "0:0",
    "local.retention.bytes": "1000",
    "local.retention.ms": "1000",
    "preallocate": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "false",
    "segment.index.bytes": "4096",
}
REFUSED_AS_IN_KAFKA = {
    "compression.gzip.level": "0",
    "compression.zstd.level": "23",
    "flush.messages": "0",
    "leader.replication.throttled.replicas": "none",
    "local.retention.ms": "-3",
    "preallocate": "maybe",
    "remote.copy.disable": "true",
    "remote.storage.enable": "true",
    "segment.jitter.ms": "-1",
}


def test_settings_of_kafka_without_an_effect_here_are_kept_and_shown(
    admin: Admin, new_name: Callable[[], str]
) -> None:
    name = new_name()
    admin.create_topic(name, config=WITHOUT_EFFECT)
    assert WITHOUT_EFFECT.items() <= admin.config(name).items()
    honoured = {"compression.gzip.level": "9", "segment.jitter.ms": "10", "cleanup.policy": ""}
    admin.change_config(name, {**WITHOUT_EFFECT, **honoured, "flush.ms": "5"})
    assert admin.config(name)["flush.ms"] == "5"
    assert honoured.items() <= admin.config(name).items()
    for setting, value in REFUSED_AS_IN_KAFKA.items():
        asked = refusal(partial(admin.change_config, name, {setting: value}))
        assert asked is ErrorCode.INVALID_CONFIG, setting


def test_a_changed_setting_holds_for_the_next_record(
    library: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    name = make_topic()
    with library.producer() as producer:
        producer.send(name, [Sent(value=b"x" * 5000)])
        admin.change_config(name, {"max.message.bytes": "2000"})
        with pytest.raises(Refused) as refused:
            producer.send(name, [Sent(value=b"x" * 5000)])
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_records_are_deleted_up_to_an_offset(
    library: Client, admin: Admin, make_topic: MakeTopic
) -> None:
    name = make_topic()
    library.produce(name, *(Sent(value=b"%d" % number) for number in range(10)))
    assert admin.delete_records(name, 0, 4) == 4
    assert [one.offset for one in library.consume(name, 6)] == list(range(4, 10))
    assert admin.delete_records(name, 0, 4) == 4
    assert admin.delete_records(name, 0, 2) == 4  # what is gone is gone: nothing to do
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert refusal(lambda: admin.delete_records(name, 0, 11)) is out_of_range
    assert admin.delete_records(name, 0, -1) == 10
    library.produce(name, Sent(value=b"next"))
    assert [one.value for one in library.consume(name, 1)] == [b"next"]


def test_the_cluster_is_described(admin: Admin, broker: ServedBroker) -> None:
    cluster_id, brokers = admin.cluster()
    assert len(cluster_id) == 22
    assert brokers == {0: broker.address}


# What only one client asks for


def test_confluent_changes_settings_one_at_a_time(
    broker: ServedBroker, make_topic: MakeTopic
) -> None:
    name = make_topic(retention_ms=1000, max_message_bytes=5000)
    admin = AdminClient({"bootstrap.servers": broker.address})

    def change(kind: AlterConfigOpType, key: str, value: str | None) -> None:
        entry = ConfigEntry(key, value, incremental_operation=kind)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def described() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result()
        return found

    change(AlterConfigOpType.SET, "segment.bytes", "4096")
    change(AlterConfigOpType.DELETE, "retention.ms", None)
    now = described()
    assert now["segment.bytes"].value == "4096"
    assert not now["segment.bytes"].is_default
    assert now["retention.ms"].is_default
    assert now["max.message.bytes"].value == "5000"
    assert {"max.message.bytes", "message.max.bytes"} >= set(now["max.message.bytes"].synonyms)
    change(AlterConfigOpType.APPEND, "cleanup.policy", "delete")
    assert described()["cleanup.policy"].value == "delete"
    with pytest.raises(KafkaException) as refused:
        change(AlterConfigOpType.APPEND, "retention.ms", "5")
    assert refused.value.args[0].code() in {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}


def test_confluent_replaces_all_settings_the_old_way(
    broker: ServedBroker, make_topic: MakeTopic
) -> None:
    name = make_topic(retention_ms=1000)
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"segment.bytes": "4096"})
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        admin.alter_configs([resource])[resource].result(PATIENCE_S)
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert found["segment.bytes"].value == "4096"
    assert found["retention.ms"].is_default


def test_settings_of_the_brokers_are_shown_and_changed_for_all_of_them(
    broker: ServedBroker, raw: RawConnection
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    own = ConfigResource(ResourceType.BROKER, "0")

    def described() -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = admin.describe_configs([own])[own].result(PATIENCE_S)
        return found

    assert described()["log.retention.check.interval.ms"].value == "50"
    assert described()["fetch.max.bytes"].is_default
    assert alter_brokers(raw, "", "log.index.interval.bytes", "1234") == ErrorCode.NONE
    assert described()["log.index.interval.bytes"].value == "1234"
    assert alter_brokers(raw, "", "log.index.interval.bytes", "x") == ErrorCode.INVALID_CONFIG
    assert alter_brokers(raw, "", "no.such.setting", "1") == ErrorCode.INVALID_CONFIG
    assert alter_brokers(raw, "", "node.id", "7") == ErrorCode.INVALID_REQUEST


def test_settings_of_one_broker_are_changed_and_outlive_it(tmp_path: Path) -> None:
    """With the client's own call; what brokers must agree about is refused."""
    one = ConfigResource(ResourceType.BROKER, "0")
    broker = ServedBroker(tmp_path / "data", {})
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        set_one(admin, one, "fetch.max.bytes", "5000")
        set_one(admin, one, "log.retention.ms", "123456")
        broker.stop()
        broker.start()
        shown = described(admin, one)
        assert shown["fetch.max.bytes"].value == "5000"
        assert shown["fetch.max.bytes"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        assert shown["log.retention.ms"].value == "123456"
        topic_setting = ConfigResource(ResourceType.TOPIC, "any")
        admin.create_topics([NewTopic("any", 1)])["any"].result(PATIENCE_S)
        assert described(admin, topic_setting)["retention.ms"].value == "123456"
        for name, value in (("num.partitions", "3"), ("node.id", "3"), ("no.such", "1")):
            with pytest.raises(KafkaException) as refused:
                set_one(admin, one, name, value)
            assert refused.value.args[0].code() in {
                ErrorCode.INVALID_REQUEST,
                ErrorCode.INVALID_CONFIG,
            }
        set_one(admin, one, "fetch.max.bytes", None)
        assert described(admin, one)["fetch.max.bytes"].is_default
    finally:
        broker.stop()


def described(admin: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return found


def set_one(admin: AdminClient, resource: ConfigResource, name: str, value: str | None) -> None:
    """Change one setting, or with None let it go."""
    kind = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(name, value, incremental_operation=kind)
    change = ConfigResource(resource.restype, resource.name, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(PATIENCE_S)


def alter_brokers(raw: RawConnection, resource: str, name: str, value: str) -> int:
    change = IncrementalAlterableConfig(name=name, config_operation=0, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=4, resource_name=resource, configs=[change]
            )
        ]
    )
    return int(raw.ask(request, 1).responses[0].error_code)


def test_confluent_lists_offsets_of_every_kind(
    broker: ServedBroker, raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic(retention_ms=-1)
    for timestamp_ms in (1000, 3000, 2000):
        record = Record(value=b"x", timestamp_ms=TimestampMs(timestamp_ms))
        produce(raw, name, bytes(build_batch([record, record])))
    admin = AdminClient({"bootstrap.servers": broker.address})

    def offset(spec: OffsetSpec) -> int:
        place = TopicPartition(name, 0)
        return int(admin.list_offsets({place: spec})[place].result(PATIENCE_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 6
    assert offset(OffsetSpec.max_timestamp()) == 2
    assert offset(OffsetSpec.for_timestamp(1500)) == 2
    assert offset(OffsetSpec.for_timestamp(5000)) == -1


def test_kafka_python_describes_the_data_directories(
    kafka_python: KafkaPythonClient, raw: RawConnection, make_topic: MakeTopic
) -> None:
    name = make_topic(partitions=2)
    produce(raw, name, batch(b"x" * 1000))
    with kafka_python.raw_admin() as admin:
        (found,) = admin.describe_log_dirs()
    (directory,) = found["log_dirs"]
    assert directory["error_code"] == 0
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for topic in directory["topics"]
        if topic["name"] == name
        for partition in topic["partitions"]
    }
    assert sizes.keys() == {0, 1}
    assert sizes[0] > 1000
    assert sizes[1] == 0


def test_kafka_python_pages_through_the_partitions_of_a_topic(
    kafka_python: KafkaPythonClient, make_topic: MakeTopic
) -> None:
    name = make_topic(partitions=7)
    with kafka_python.raw_admin() as admin:
        found = admin.describe_topic_partitions([name], response_partition_limit=3)
    assert [one["partition_index"] for one in found["topics"][0]["partitions"]] == [0, 1, 2]
    assert found["next_cursor"] == {"topic_name": name, "partition_index": 3}


def test_kafka_python_describes_producers_and_quorum(
    kafka_python: KafkaPythonClient, make_topic: MakeTopic
) -> None:
    name = make_topic()
    kafka_python.produce(name, Sent(value=b"x"), idempotent=True)
    place = partition_of(name, 0)
    with kafka_python.raw_admin() as admin:
        (producer,) = admin.describe_producers([place])[place].active_producers
        quorum = admin.describe_metadata_quorum()
        assert admin.list_config_resources()["broker"] == ["0"]
    assert producer.producer_id >= 0
    assert producer.last_sequence == 0
    assert quorum["topics"][0]["partitions"][0]["leader_id"] == 0


def test_kafka_python_lists_no_reassignments(
    kafka_python: KafkaPythonClient, make_topic: MakeTopic
) -> None:
    partition = partition_of(make_topic(), 0)
    with kafka_python.raw_admin() as admin:
        assert not admin.list_partition_reassignments([partition])
        assert not admin.list_partition_reassignments()


@pytest.mark.skipif(not is_installed(), reason=MISSING)
def test_kcat_lists_brokers_and_topics(broker: ServedBroker, make_topic: MakeTopic) -> None:
    name = make_topic(partitions=3)
    said = run_kcat("-L", "-b", broker.address)
    assert f"broker 0 at {broker.address} (controller)" in said
    assert f'topic "{name}" with 3 partitions' in said
