"""Settings of a broker: its own, and the defaults of topics by their broker names."""

import pytest

from ottla.config import BrokerConfig
from ottla.config.broker import shared_broker_settings
from ottla.errors import InvalidConfig


def test_broker_names_set_the_defaults_of_topics() -> None:
    config = BrokerConfig.parse({"log.retention.ms": "5", "message.max.bytes": "99"})
    assert config.topic.retention_ms == 5
    assert config.topic.max_message_bytes == 99


def test_compaction_is_set_by_kafkas_names() -> None:
    config = BrokerConfig.parse(
        {
            "log.cleanup.policy": "compact",
            "log.cleaner.min.cleanable.ratio": "0.25",
            "log.cleaner.delete.retention.ms": "7",
            "log.cleaner.backoff.ms": "8",
            "log.cleaner.dedupe.buffer.size": "1048576",
        }
    )
    assert config.topic.cleanup_policy == ("compact",)
    assert config.topic.min_cleanable_dirty_ratio == 0.25
    assert config.topic.delete_retention_ms == 7
    assert (config.cleaner_backoff_ms, config.cleaner_memory_bytes) == (8, 1048576)


@pytest.mark.parametrize(
    "settings",
    [
        {"group.consumer.session.timeout.ms": "1000"},
        {"group.consumer.session.timeout.ms": "60001"},
        {"group.consumer.heartbeat.interval.ms": "100"},
        {
            "group.consumer.heartbeat.interval.ms": "45000",
            "group.consumer.max.heartbeat.interval.ms": "45000",
        },
        {"group.consumer.assignors": "uniform,sticky"},
        {"group.consumer.migration.policy": "sometimes"},
    ],
)
def test_settings_of_consumer_groups_that_do_not_fit_together_are_refused(
    settings: dict[str, str],
) -> None:
    with pytest.raises(InvalidConfig, match=r"group\.consumer"):
        BrokerConfig.parse(settings)


def test_the_first_assignor_that_is_named_comes_first() -> None:
    config = BrokerConfig.parse({"group.consumer.assignors": "range, uniform"})
    assert config.consumer_group_assignors == ("range", "uniform")


def test_settings_that_all_brokers_share_are_known_by_their_broker_names() -> None:
    """A topic's setting counts by the broker setting that is its default."""
    shared = shared_broker_settings()
    assert shared >= {"num.partitions", "min.insync.replicas", "unclean.leader.election.enable"}
    assert not shared & {"fetch.max.bytes", "log.retention.ms", "retention.ms"}


def test_settings_that_are_overridden_replace_those_before_and_leave_the_rest() -> None:
    config = BrokerConfig.parse({"num.partitions": "3", "log.retention.ms": "5"})
    again = config.override({"num.partitions": "4", "log.segment.bytes": "2000000"})
    assert (again.partitions_default, again.topic.retention_ms) == (4, 5)
    assert again.topic.segment_bytes == 2_000_000
    assert config.partitions_default == 3, "a configuration is a value"
