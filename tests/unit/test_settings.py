"""The settings in force: changes of all brokers, of one, and those of a topic."""

import pytest

from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import InvalidConfig
from ottla.settings import Settings


def test_a_brokers_own_changes_are_over_those_of_all_and_both_over_its_start() -> None:
    settings = Settings(BrokerConfig.parse({"num.partitions": "2", "fetch.max.bytes": "5000"}))
    settings.change({"num.partitions": "3", "log.retention.ms": "70"}, {"log.retention.ms": "80"})
    assert settings.broker.partitions_default == 3
    assert settings.broker.topic.retention_ms == 80
    assert settings.broker.fetch_bytes_max == 5000
    assert settings.started_with.partitions_default == 2


def test_a_change_that_is_withdrawn_leaves_what_the_broker_was_started_with() -> None:
    settings = Settings(BrokerConfig.parse({"num.partitions": "2"}))
    settings.change({"num.partitions": "3"}, {})
    settings.change({}, {})
    assert settings.broker == settings.started_with


def test_a_change_that_is_wrong_changes_nothing() -> None:
    settings = Settings(BrokerConfig())
    settings.change({"num.partitions": "3"}, {})
    with pytest.raises(InvalidConfig):
        settings.change({"num.partitions": "none"}, {})
    assert settings.broker.partitions_default == 3


def test_a_topics_own_settings_are_over_the_brokers() -> None:
    settings = Settings(BrokerConfig.parse({"log.retention.ms": "70", "log.roll.ms": "90"}))
    topic = settings.topic({"retention.ms": "80"})
    assert (topic.retention_ms, topic.segment_ms) == (80, 90)
    assert settings.topic({}) == settings.broker.topic


@pytest.mark.parametrize("raw", [{"retention.ms": "soon"}, {"of.a.later.version": "1"}])
def test_a_topic_with_a_setting_that_no_longer_parses_is_served_with_the_brokers(
    raw: dict[str, str],
) -> None:
    settings = Settings(BrokerConfig.parse({"log.retention.ms": "70"}))
    topic = settings.topic({"segment.ms": "5", **raw})
    assert topic == settings.broker.topic
    assert topic != TopicConfig()


def test_settings_that_differ_from_their_defaults_are_named_with_the_values_in_force() -> None:
    settings = Settings(BrokerConfig.parse({"num.partitions": "2", "fetch.max.bytes": "5000"}))
    settings.change({"num.partitions": "1", "log.retention.ms": "70"}, {})
    assert settings.changed() == {"fetch.max.bytes": "5000", "log.retention.ms": "70"}
    assert Settings(BrokerConfig()).changed() == {}


def test_a_groups_own_settings_count_until_the_brokers_limits_forbid_them() -> None:
    settings = Settings(BrokerConfig())
    own = {"consumer.session.timeout.ms": "60000"}
    assert settings.group(own).consumer_session_timeout_ms == 60_000
    settings.change({"group.consumer.max.session.timeout.ms": "50000"}, {})
    assert settings.group(own).consumer_session_timeout_ms == 45_000
