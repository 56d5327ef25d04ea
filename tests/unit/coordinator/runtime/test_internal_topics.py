"""Internal topics: kept for ever, with room for the largest record, by the broker's settings."""

import pytest

from ottla.config import BrokerConfig, TopicConfig
from ottla.coordinator.runtime.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    internal_config,
    new_internal_topic,
)


def settings_of(broker: BrokerConfig, name: str = OFFSETS_TOPIC) -> TopicConfig:
    """The settings of an internal topic, over those of the broker."""
    return broker.topic.override(internal_config(name, broker))


@pytest.mark.parametrize(
    ("name", "count"), [(OFFSETS_TOPIC, 3), (TRANSACTIONS_TOPIC, 5), (SHARE_STATE_TOPIC, 7)]
)
def test_each_has_its_own_number_of_partitions_and_is_internal(name: str, count: int) -> None:
    broker = BrokerConfig.parse(
        {
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "5",
            "share.coordinator.state.topic.num.partitions": "7",
            "num.partitions": "9",
        }
    )
    topic = new_internal_topic(name, broker)
    assert (topic.name, topic.partition_count, topic.is_internal) == (name, count, True)
    assert topic.config == internal_config(name, broker)
    assert name in INTERNAL_TOPICS


def test_a_record_is_kept_until_a_newer_one_replaces_it() -> None:
    broker = BrokerConfig.parse({"log.cleanup.policy": "delete", "log.retention.ms": "1000"})
    assert settings_of(broker).cleanup_policy == ("compact",)


def test_updates_of_share_partitions_are_neither_compacted_nor_too_old() -> None:
    broker = BrokerConfig.parse({"log.cleanup.policy": "compact", "log.retention.ms": "1000"})
    kept = settings_of(broker, SHARE_STATE_TOPIC)
    assert (kept.cleanup_policy, kept.retention_ms) == (("delete",), -1)


def test_whatever_topics_compress_or_limit_records_of_coordinators_are_kept_as_they_are() -> None:
    broker = BrokerConfig.parse(
        {
            "compression.type": "zstd",
            "message.max.bytes": "1000",
            "log.segment.bytes": "5000000",
            "offsets.topic.segment.bytes": "2000000",
        }
    )
    config = settings_of(broker)
    assert config.compression_type == "producer"
    assert config.max_message_bytes == 32 << 20, "a generation is one record"
    assert config.segment_bytes == 2_000_000
