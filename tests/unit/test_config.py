import pytest

from ottla.config import (
    BrokerConfig,
    Durability,
    TopicConfig,
    flatten,
    format_value,
    settings_of,
)
from ottla.errors import InvalidConfig


def test_two_weeks_are_kept_and_fsync_is_promised_unless_said_otherwise() -> None:
    config = TopicConfig()
    assert config.retention_ms == 14 * 24 * 3_600_000
    assert config.durability is Durability.FSYNC


def test_an_unknown_setting_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.mss"):
        TopicConfig().override({"retention.mss": "1"})
    with pytest.raises(InvalidConfig, match=r"num\.partition"):
        BrokerConfig.parse({"num.partition": "1"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("segment.bytes", str(2**31)),
        ("durability", "maybe"),
        ("cleanup.policy", "burn"),
        ("cleanup.policy", "compact,burn"),
        ("cleanup.policy", ""),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("unclean.leader.election.enable", "yes"),
    ],
)
def test_a_value_that_does_not_work_is_an_error_that_says_what_does(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match="allowed is"):
        TopicConfig().override({name: text})


def test_broker_names_set_the_defaults_of_topics() -> None:
    config = BrokerConfig.parse({"log.retention.ms": "5", "message.max.bytes": "99"})
    assert config.topic.retention_ms == 5
    assert config.topic.max_message_bytes == 99


def test_every_setting_prints_as_something_it_can_read_again() -> None:
    for config in (TopicConfig(), BrokerConfig()):
        for field, row in settings_of(type(config)):
            value = getattr(config, field)
            assert row.parse(format_value(value)) == value
            assert row.doc.endswith(".")


def test_toml_tables_and_quoted_names_mean_the_same() -> None:
    assert flatten({"num": {"partitions": 3}}) == flatten({"num.partitions": 3})
    assert flatten({"a": True, "b": [1, 2]}) == {"a": "true", "b": "1,2"}


def test_a_policy_may_be_both_in_any_order() -> None:
    for text in ("compact,delete", "delete, compact"):
        config = TopicConfig().override({"cleanup.policy": text})
        assert config.cleanup_policy == ("compact", "delete")
        assert format_value(config.cleanup_policy) == "compact,delete"


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
