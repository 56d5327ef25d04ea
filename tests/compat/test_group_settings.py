"""Settings of single groups, with the calls that client libraries have for them."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as KafkaPythonConfigResource
from kafka.admin import ConfigResourceType

from compat.adapter import PATIENCE_S, MakeTopic, wait_until
from compat.raw import RawConnection, connected
from compat.served import ServedBroker
from compat.test_group_requests import find
from compat.wire import create_topic
from ottla.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def change(admin: AdminClient, group: str, **settings: str | None) -> None:
    """Set settings, or with None let them go; `_` for dots."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def described(admin: AdminClient, group: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.GROUP, group)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return found


def test_confluent_sets_shows_and_deletes_settings_of_a_group(
    broker: ServedBroker, new_name: Callable[[], str]
) -> None:
    admin, group = AdminClient({"bootstrap.servers": broker.address}), new_name()
    assert described(admin, group)[SESSION].value == "45000"
    change(
        admin, group, consumer_session_timeout_ms="50000", share_isolation_level="read_committed"
    )
    shown = described(admin, group)
    assert shown[SESSION].value == "50000"
    assert shown[SESSION].source == ConfigSource.GROUP_CONFIG.value
    assert list(shown[SESSION].synonyms) == [SESSION, "group.consumer.session.timeout.ms"]
    assert shown["share.isolation.level"].value == "read_committed"
    assert shown[INTERVAL].is_default
    change(admin, group, consumer_session_timeout_ms=None)
    assert described(admin, group)[SESSION].is_default


@pytest.mark.parametrize(
    "settings",
    [
        {"consumer_session_timeout_ms": "1"},
        {"consumer_heartbeat_interval_ms": "60000"},
        {"share_delivery_count_limit": "1"},
        {"retention_ms": "1"},
    ],
)
def test_confluent_hears_which_settings_a_group_cannot_have(
    broker: ServedBroker, new_name: Callable[[], str], settings: dict[str, str]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    with pytest.raises(KafkaException) as refused:
        change(admin, new_name(), **settings)
    assert refused.value.args[0].code() == ErrorCode.INVALID_CONFIG


@pytest.fixture
def kafka_python_admin(broker: ServedBroker) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    yield admin
    admin.close()


def test_kafka_python_lists_groups_that_have_settings(
    kafka_python_admin: Any, new_name: Callable[[], str]
) -> None:
    group = new_name()
    resource = KafkaPythonConfigResource(ConfigResourceType.GROUP, group, {INTERVAL: "6000"})
    kafka_python_admin.alter_configs([resource])
    assert group in str(kafka_python_admin.list_config_resources())
    asked = KafkaPythonConfigResource(ConfigResourceType.GROUP, group)
    assert "6000" in str(kafka_python_admin.describe_configs([asked]))


def test_a_silent_member_is_dropped_after_the_session_of_its_group(tmp_path: Path) -> None:
    """The broker's own session lasts for an hour: without the group's, this would never end.

    And it outlives the broker, which is killed in between.
    """
    settings = {
        "group.consumer.max.session.timeout.ms": "3600000",
        "group.consumer.session.timeout.ms": "3600000",
        "group.consumer.min.session.timeout.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "100",
    }
    served = ServedBroker(tmp_path / "data", settings)
    served.start()
    try:
        admin = AdminClient({"bootstrap.servers": served.address})
        change(
            admin,
            "brief",
            consumer_session_timeout_ms="1000",
            consumer_heartbeat_interval_ms="200",
        )
        served.end(signal.SIGKILL)
        served.start()
        with connected(served.address) as raw:
            create_topic(raw, "t")
            for group in ("brief", "long"):
                find(raw, group)
                assert beat(raw, group) == (200 if group == "brief" else 5000)
            wait_until(lambda: members(raw, "brief") == 0, "the silent member is dropped")
            assert members(raw, "long") == 1
        assert described(admin, "brief")[SESSION].value == "1000"
    finally:
        served.stop()


def beat(raw: RawConnection, group: str) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    response = raw.ask(request, 1)
    assert response.error_code == ErrorCode.NONE, response
    interval_ms: int = response.heartbeat_interval_ms
    return interval_ms


def members(raw: RawConnection, group: str) -> int:
    (found,) = raw.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups
    return len(found.members)


def test_a_consumer_of_a_group_with_settings_reads(
    broker: ServedBroker, make_topic: MakeTopic, new_name: Callable[[], str]
) -> None:
    topic, group = make_topic(), new_name()
    change(
        AdminClient({"bootstrap.servers": broker.address}),
        group,
        consumer_heartbeat_interval_ms="6000",
    )
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until(
            lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "it has a partition"
        )
    finally:
        consumer.close()
